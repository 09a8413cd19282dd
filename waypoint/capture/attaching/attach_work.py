"""The work that `attach_program.py` does: one order."""

import contextlib
import errno
import functools
import os
import select
import stat
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator

import msgspec

from waypoint.capture import steps
from waypoint.capture.attaching.attach_orders import (
    AttachOrder,
    AttachOutcome,
    Incoming,
    PutBack,
    PutThere,
    SessionSide,
    TakeIn,
    TakenIn,
)
from waypoint.capture.layers.attached import CONTENT
from waypoint.linux.calls import programs
from waypoint.linux.storage import access, deep, filesystem
from waypoint.linux.storage.beneath import name_of, open_beneath, open_in_root
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.files import write_all
from waypoint.linux.storage.idmapped import acting_as
from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.errors import Failed, UsageProblem, WaypointError, as_text, bug_of, cleaned, trace_of
from waypoint.model.ids import random_hex
from waypoint.model.records import NOBODY, IdMap
from waypoint.parcel.ends import Pickup, land_at
from waypoint.parcel.pack_parcel import whole
from waypoint.parcel.parcel_records import BadParcel, Omitted, Packed, records_of
from waypoint.parcel.unpack_parcel import Owners, unpack
from waypoint.upper.contract import NEXT_STEPS, mib, own_limit

_MOST_LINES, _MOST_LETTERS = 20, 300
"""Of what is told of a layer that was left out."""
_DESCRIBED = "send what docs/protocol.md, section 6, describes"
_WORKED_ON = "an attached layer"
_PIECE_BYTES = 1 << 20
_NICE = 10
"""For a session, which may ask again and again."""
_LOOK_BYTES = 16 << 20
"""After so many bytes it is looked how much of the disk is free: others write, too."""


def main(order: int, pause_at: str) -> int:
    """Carry out the order behind the descriptor `order`. `pause_at`: the folder of steps to stop at. Returns the exit
    status.
    """
    os.umask(0o077)
    steps.arm(pause_at)
    try:
        with open(order, "rb") as file:
            wanted: AttachOrder = msgspec.json.decode(file.read(), type=AttachOrder)
        answer: dict[str, object] = {"result": carry_out(wanted)}
    except WaypointError as error:
        answer = {"error": error.to_json()}
    except Exception as error:  # who asked has its words; the log, to which stderr leads, where it comes from
        print(trace_of(error, _WORKED_ON), file=sys.stderr)
        answer = {"error": bug_of(error, "move", _WORKED_ON).to_json()}
    with contextlib.suppress(BrokenPipeError):  # the daemon has gone
        write_all(1, msgspec.json.encode(answer) + b"\n")
    return 0


def carry_out(order: AttachOrder) -> AttachOutcome:
    """Raises WaypointError; what has been made until then stays, for the caller to remove."""
    return take_in(order) if isinstance(order, TakeIn) else put_back(order)


def take_in(order: TakeIn) -> TakenIn:
    """Take all layers in. What comes on stdin is anybody's."""
    if order.side is not None:
        os.nice(_NICE)
    records, spend = records_of(_arriving()), _spender(order)
    found: dict[str, AttachedLayer] = {}
    for layer in order.layers:
        place = f"{order.folder}/{layer.kind}"
        try:
            os.mkdir(place, 0o700)
            with _source_of(layer, order, records) as source:
                found[layer.kind] = _take_in(layer, place, source, spend)
            steps.reach(steps.StoreStep.ATTACHED_ONE)
            os.utime(place, ns=(0, 0))  # so that the same content makes the same image
        except BadParcel as error:
            said = f"what came for it is no parcel that can be taken: {error}"
            raise UsageProblem("attach", layer.kind, said, _DESCRIBED) from error
        except subprocess.CalledProcessError as error:
            said = os.fsdecode(error.stderr or b"").strip()[-200:]
            raise Failed("attach", layer.kind, said, "try again") from error
        except OSError as error:
            if layer.path and isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
                said, usable = error.strerror or "", "name one that is there and that the session's user may read"
                raise UsageProblem("attach", layer.path, said, usable) from error
            raise _failed("attach", layer.kind, error) from error
    try:
        if next(records, None) is not None:
            raise BadParcel("something follows behind the last layer")
    except BadParcel as error:
        raise UsageProblem("attach", "layers", str(error), _DESCRIBED) from error
    return TakenIn(layers=found)


def _take_in(layer: Incoming, place: str, records: Iterator[Packed], spend: Callable[[int], None]) -> AttachedLayer:
    if layer.earlier:
        # The files of a capture never change, so several captures may have the same ones.
        programs.run("cp", "-a", "--link", "--", f"{layer.earlier}/{CONTENT}", f"{place}/{CONTENT}")
        return AttachedLayer(size_bytes=0, files=0, is_folder=os.path.isdir(f"{place}/{CONTENT}"), stamp=layer.stamp)
    with open_folder(place) as fd:
        made = unpack(records, land_at(fd, CONTENT), Owners(gives=False), spend)
    if not os.path.lexists(f"{place}/{CONTENT}"):
        raise BadParcel("all of it is left out")
    return AttachedLayer(
        size_bytes=made.size_bytes,
        files=made.entries - made.folders,
        is_folder=os.path.isdir(f"{place}/{CONTENT}"),
        stamp=layer.stamp,
        left_out=_told(made.left_out),
    )


def _told(left_out: list[Omitted]) -> list[str]:
    """What a record says of it, whoever has sent it: some lines of some length."""
    said = [as_text(cleaned(f"{one.path}: {one.why}"))[:_MOST_LETTERS] for one in left_out[:_MOST_LINES]]
    return [*said, f"and {len(left_out) - len(said)} more"] if len(said) < len(left_out) else said


def put_back(order: PutBack) -> PutThere:
    """Write a layer to where the order says. Nothing is at its path until all of it is."""
    near = f".{random_hex(8)}.waypoint"
    os.umask(0o022)
    try:
        with open_folder(order.source) as source, acting_as(order.uid, order.gid), _place_of(order) as (folder, name):
            try:
                owners = Owners(gives=False, of=lambda one: _outside(order.ids, one))
                unpack(whole(Pickup(source, CONTENT, "")), land_at(folder, near), owners)
                _put_in_place(folder, near, name)
            except BaseException:
                _remove(folder, near)
                raise
    except OSError as error:
        tried, on = "bring back", f"an attached layer to {order.path}"
        if full := own_limit(error, order.disk):
            next_step = "start one with more, and copy it there: waypoint shell NEW --from NAME -d --disk SIZE"
            raise Failed(tried, on, full, next_step) from error
        raise _failed(tried, on, error) from error
    return PutThere()


def _outside(ids: IdMap, number: int) -> int:
    try:
        return ids.outside(number)
    except ValueError:
        return ids.outside(NOBODY)


@contextlib.contextmanager
def _source_of(layer: Incoming, order: TakeIn, records: Iterator[Packed]) -> Iterator[Iterator[Packed]]:
    """The records of the layer: the next of `records`, or those of a file or folder of the session."""
    if order.side is None or not layer.path:
        yield records
        return
    with contextlib.ExitStack() as held, contextlib.closing(_of_session(order.side, layer.path, held)) as found:
        yield found


def _of_session(side: SessionSide, path: str, held: contextlib.ExitStack) -> Generator[Packed, None, None]:
    """The records of what is at `path` in a session, links followed as there, each step of which is made with the
    rights of the session's user. Raises OSError, BadParcel.
    """
    acting: access.Looking = contextlib.nullcontext
    if side.user is not None:
        acting = functools.partial(access.as_user, *side.user)
    with acting():
        fd = open_in_root(side.root_fd, path, os.O_PATH)
        held.callback(os.close, fd)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                said = "it is neither a file nor a folder"
                raise UsageProblem("attach", path, said, "copy what it has into a file")
            # By the descriptor: what has the path by now may be a FIFO that nobody writes to.
            fd = os.open(name_of(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            held.callback(os.close, fd)
        found = whole(Pickup(fd, "", ""), side.views, side.ids.inside)
    while True:
        with acting():
            record = next(found, None)
        if record is None:
            return
        yield record


@contextlib.contextmanager
def _place_of(order: PutBack) -> Iterator[tuple[int, str]]:
    """The folder in which the path lies, which is made if it is missing, and the last name of the path."""
    *above, name = order.path.strip("/").split("/")
    folder = os.dup(order.root_fd)
    try:
        for part in above:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder)
            below = open_beneath(folder, part, os.O_PATH | os.O_DIRECTORY)
            os.close(folder)
            folder = below
        yield folder, name
    finally:
        os.close(folder)


def _put_in_place(folder: int, near: str, name: str) -> None:
    """Let `near` have the name `name`, in place of what has it."""
    try:
        os.rename(near, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR):
            raise
        _remove(folder, name)
        os.rename(near, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(folder: int, name: str) -> None:
    try:
        with open_folder(name_of(folder)) as fd:
            deep.remove(fd, name)
    except FileNotFoundError:
        return


def _arriving() -> Iterator[bytes]:
    while piece := os.read(0, _PIECE_BYTES):
        yield piece


def _spender(order: TakeIn) -> Callable[[int], None]:
    """A function that is told of each piece of the disk before it is taken. It raises OSError ENOSPC when less than the
    floor would be left, EPIPE when the daemon has gone, whose successor removes what is there.
    """
    left, daemon = 0, select.poll()
    daemon.register(0, 0)  # of the socket on stdin, only whether the other end is closed

    def spend(size: int) -> None:
        nonlocal left
        if daemon.poll(0):
            raise OSError(errno.EPIPE, "the daemon has gone")
        if size > left:
            room = filesystem.free_bytes(order.folder) - order.floor_bytes
            if room < size:
                said = f"{os.strerror(errno.ENOSPC)}: less than {mib(order.floor_bytes)} of the disk would be left"
                raise OSError(errno.ENOSPC, said)
            left = min(room, _LOOK_BYTES)
        left -= size

    return spend


def _failed(tried: str, on: str, error: OSError) -> Failed:
    said = f"{error.strerror}: {os.fsdecode(error.filename)}" if error.filename else str(error.strerror)
    return Failed(tried, on, said, NEXT_STEPS.get(error.errno or 0, "see what is there, and try again"))
