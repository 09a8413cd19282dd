"""Attaching files and folders to captures, and getting them back. The client opens what is attached, as the user."""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from waypoint.client import wire
from waypoint.client.attached.known_layers import capture_path, layers_of
from waypoint.client.attached.upload import send_body
from waypoint.client.files.known_homes import holds, known_homes
from waypoint.client.link import quote_branch, reach, unanswered
from waypoint.client.parsing import parse, parse_list
from waypoint.model import plainjson
from waypoint.model.details.layer_facts import AttachedFacts, AttachingFacts
from waypoint.model.errors import Failed, NotAllowed, UnknownName, UsageProblem
from waypoint.model.ids import random_hex
from waypoint.model.names import parse_kind
from waypoint.parcel.ends import Pickup, land_at
from waypoint.parcel.pack_parcel import gathered, whole
from waypoint.parcel.parcel_records import BadParcel, Inode, Packed, encode, records_of
from waypoint.parcel.stamping import stamp_of
from waypoint.parcel.unpack_parcel import Owners, pour, unpack

PathText = str | os.PathLike[str]
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ToAttach(NamedTuple):
    """What is to be attached. `paths`: of files and folders, by kind. `sent`: told how many bytes more are sent.
    `homes`: those of Waypoint, which are left out.
    """

    paths: Mapping[str, PathText]
    sent: Callable[[int], object] = lambda _: None
    homes: frozenset[Inode] = frozenset()


def checkpoint_with(home: str, branch: str, body: dict[str, object], attach: ToAttach) -> object:
    """Ask for the checkpoint `body` on `branch`, with files and folders attached. What the branch's last capture has
    already is not sent again. Returns the daemon's answer.
    """
    target = f"/v1/sessions/{quote_branch(branch)}/checkpoint/attached"
    return _send(home, target, {"checkpoint": body}, branch, attach)


def attach_to(home: str, name: str, attach: ToAttach) -> AttachingFacts:
    """Attach files and folders to what `name` stands for; it stands for a new capture then. Raises UnknownName,
    NotAllowed, StateConflict (a live branch).
    """
    answer = _send(home, f"{capture_path(name)}/layers", {}, name, attach)
    return parse(AttachingFacts, answer, layers=parse_list(AttachedFacts, answer, "layers"))


def _send(home: str, target: str, request: dict[str, object], known_to: str, attach: ToAttach) -> object:
    """Send a request that attaches. `known_to`: the name of a capture that may have some of it."""
    homes = known_homes(home)
    with _opened(attach.paths, homes) as sources:
        known = _known(home, known_to)
        layers = [_described(kind, fd, known, homes) for kind, fd in sources.items()]
        attach = attach._replace(homes=homes)
        return send_body(home, target, lambda: _body({**request, "layers": layers}, layers, sources, attach))


def get_layer(home: str, name: str, kind: str, to: PathText, *, force: bool) -> None:
    """Write the layer to `to`, which must not be there, unless `force`; it is there when it is whole."""
    above, base = os.path.split(os.path.abspath(to))
    near = f".{base[:100]}.{random_hex(4)}"
    with _telling("write", str(to)):
        if os.path.lexists(to) and not force:
            raise UsageProblem("write", str(to), "it is there already", "choose another place, or --force")
        if os.path.lexists(to):
            _check_alike(home, name, kind, str(to))
        folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _telling("write", str(to)), _removing(folder, near):
            _receive(home, name, kind, lambda records: unpack(records, land_at(folder, near), Owners(gives=False)))
            _put_in_place(folder, near, base)
    finally:
        os.close(folder)


def _check_alike(home: str, name: str, kind: str, to: str) -> None:
    """Raise UsageProblem if a file would replace a folder, with all in it, or a folder a file."""
    is_there = os.path.isdir(to) and not os.path.islink(to)
    for one in layers_of(home, name):
        if one.kind == kind and one.is_folder != is_there:
            there, comes = ("a folder", "a file") if is_there else ("no folder", "a folder")
            next_step = f"name a place in it: {os.path.join(to, kind)}" if is_there else "choose a place that is free"
            raise UsageProblem("replace", to, f"it is {there}, and {kind} of {name} is {comes}", next_step)


def pour_layer(home: str, name: str, kind: str, fd: int) -> None:
    """Write the layer, which must be a file, to the descriptor."""
    if any(one.is_folder for one in layers_of(home, name) if one.kind == kind):
        raise UsageProblem("write", f"{kind} of {name}", "it is a folder", "name a place for it instead of -")
    _receive(home, name, kind, lambda records: pour(records, fd))


def _receive(home: str, name: str, kind: str, take: Callable[[Iterator[Packed]], object]) -> None:
    target = f"{capture_path(name)}/layers/{parse_kind(kind)}"

    def act(path: str) -> None:
        sock = wire.send_request(path, "GET", target)
        try:
            head, data = wire.read_head(sock)
            pieces = wire.iter_body(sock, head, data)
            if head.status != 200:
                wire.judge(head.status, b"".join(pieces))
            take(records_of(pieces))
        except BadParcel as error:
            raise wire.nonsense(f"a parcel that nobody should unpack: {error}") from error
        finally:
            sock.close()

    try:
        reach(home, act)
    except wire.Cut as cut:
        raise unanswered(home, "GET", target, cut) from cut


def _known(home: str, branch: str) -> dict[str, str]:
    """The stamps of what is attached to the last capture of the branch."""
    with contextlib.suppress(UnknownName, NotAllowed):
        return {one.kind: one.stamp for one in layers_of(home, branch)}
    return {}


def _described(kind: str, fd: int, known: Mapping[str, str], homes: frozenset[Inode]) -> dict[str, object]:
    stamp = ""
    with contextlib.suppress(OSError):  # it is told when it is read
        stamp = stamp_of(fd, homes)
    return {"kind": kind, "stamp": stamp, "same": bool(stamp) and known.get(kind) == stamp}


def _body(
    request: dict[str, object],
    layers: list[dict[str, object]],
    sources: Mapping[str, int],
    attach: ToAttach,
) -> Iterator[bytes]:
    yield plainjson.encode(request).encode() + b"\n"
    for layer, (kind, fd) in zip(layers, sources.items(), strict=True):
        if not layer["same"]:
            with _telling("attach", os.fspath(attach.paths[kind])):
                for piece in gathered(map(encode, whole(Pickup(fd, "", ""), homes=attach.homes))):
                    yield piece
                    attach.sent(len(piece))


@contextlib.contextmanager
def _opened(attach: Mapping[str, PathText], homes: frozenset[Inode]) -> Iterator[dict[str, int]]:
    """Descriptors of the files and folders, by kind. Raises UsageProblem for what is neither, or a home's."""
    with contextlib.ExitStack() as held:
        found: dict[str, int] = {}
        for kind, path in attach.items():
            on = os.fspath(path)
            if holds(homes, on):
                said = "it lies in a home of Waypoint, in which what is attached is kept, too"
                raise UsageProblem("attach", on, said, "name another file or folder")
            with _telling("attach", on):
                fd = _open(on)
            held.callback(os.close, fd)
            found[parse_kind(kind)] = fd
        yield found


def _open(path: str) -> int:
    """A descriptor of the file or folder. Raises OSError, UsageProblem."""
    try:
        fd = os.open(path, _OPEN)
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return fd
        os.close(fd)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENODEV):  # a socket; a device without a driver
            raise
    raise UsageProblem("attach", path, "it is neither a file nor a folder", "copy what it has into a file")


@contextlib.contextmanager
def _telling(tried: str, on: str) -> Iterator[None]:
    """An OSError in the `with` block becomes a WaypointError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UsageProblem(tried, on, _said(error, on), "name one that is there and that you may use") from error
    except OSError as error:
        if isinstance(error, wire.Cut):
            raise
        raise Failed(tried, on, _said(error, on), "see what is there, and try again") from error


def _said(error: OSError, on: str) -> str:
    name = error.filename if isinstance(error.filename, str) else ""
    return f"{error.strerror}: {name}" if name not in ("", on) else str(error.strerror)


@contextlib.contextmanager
def _removing(folder: int, near: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _remove(folder, near)
        raise


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


def _put_in_place(folder: int, near: str, name: str) -> None:
    """Let `near` have the name `name`; what had it goes when it does not have it any more."""
    old = f"{near}.old"
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, old, src_dir_fd=folder, dst_dir_fd=folder)
    os.rename(near, name, src_dir_fd=folder, dst_dir_fd=folder)
    _remove(folder, old)
