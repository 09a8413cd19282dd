"""Of a home: the files of its captures and live sessions. What is on the machine, this process reads and writes."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from waypoint.client.files.file_channel import FileChannel
from waypoint.client.link import ask
from waypoint.client.parsing import parse
from waypoint.client.wire import nonsense
from waypoint.model import facts
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.facts import MountedFacts
    from waypoint.parcel.parcel_records import Omitted

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """`entries`: files, folders and links. `size_bytes`: of content, without holes. `left_out`: paths, each with why it
    was not copied.
    """

    entries: int
    size_bytes: int
    left_out: list[str]


class FileCalls:
    """Use Client.files. `name`: a live branch, or whatever stands for a capture. `path`: of a file or folder there; a
    relative one begins in the folder in which the session starts.
    """

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self.home = home

    def read(self, name: str, path: AnyPath) -> Iterator[bytes]:
        """The content of a file, piece by piece. Raises UsageProblem for what is no file."""
        with self._channel(name, "read", path) as channel:
            yield from channel.receive()

    def copy_from(self, name: str, path: AnyPath, target: AnyPath) -> Copied:
        """Copy a file or folder to `target` on the machine, as `cp -a` does, but no link is followed, and no program
        gets set-user-id bits. Owners are kept if this process is root's. Raises OSError for what is on the machine.
        """
        from waypoint.parcel.ends import land
        from waypoint.parcel.parcel_records import BadParcel, records_of
        from waypoint.parcel.unpack_parcel import Owners, unpack

        where = os.fsdecode(target)
        owners = Owners(gives=os.geteuid() == 0)
        with self._channel(name, "fetch", path) as channel:
            try:
                made = unpack(records_of(channel.receive()), lambda entry: land(_open_folder, where, entry), owners)
            except BadParcel as error:
                raise nonsense(f"a parcel that nobody should unpack: {error}") from error
        return Copied(entries=made.entries, size_bytes=made.size_bytes, left_out=_told(made.left_out))

    def copy_to(self, source: AnyPath, name: str, path: AnyPath) -> Copied:
        """Copy a file or folder of the machine into a live session, as `cp -a` does, but no link is followed. Owners
        are kept if root asks; else all is the session's user's. Homes of Waypoint are left out. Raises OSError for what
        is on the machine, StateConflict if `name` is no live session.
        """
        from waypoint.client.files.known_homes import known_homes
        from waypoint.parcel.ends import take_up
        from waypoint.parcel.pack_parcel import Packing, gathered

        origin = take_up(_open_folder, os.fsdecode(source))
        try:
            with contextlib.closing(Packing(origin, homes=known_homes(self.home))) as packing:
                first = next(packing)  # what is not there is said before the daemon is asked
                with self._channel(name, "put", path) as channel:
                    end = channel.send(gathered(itertools.chain([first], packing)))
        finally:
            os.close(origin.folder)
        entries, size = end.get("entries"), end.get("size_bytes")
        return Copied(
            entries=entries if isinstance(entries, int) else 0,
            size_bytes=size if isinstance(size, int) else 0,
            left_out=_told(packing.left_out),
        )

    def mount(self, name: str, folder: AnyPath) -> "MountedFacts":
        """Mount the files of the capture that `name` stands for at `folder`, read-only, until umount(8). For root.
        Raises StateConflict if `name` is a live branch, NotAllowed.
        """
        body: dict[str, object] = {"name": parse_name(name), "folder": os.path.realpath(os.fsdecode(folder))}
        return parse(facts.MountedFacts, ask(self.home, "POST", "/v1/mounts", body, may_repeat=False))

    @contextlib.contextmanager
    def _channel(self, name: str, verb: str, path: AnyPath) -> Iterator[FileChannel]:
        with contextlib.closing(FileChannel(self.home, parse_name(name), verb, os.fsencode(path))) as channel:
            yield channel


def _open_folder(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _told(left_out: "list[Omitted]") -> list[str]:
    return [f"{one.path}: {one.why}" for one in left_out]
