"""Putting the files of the base that a capture's processes have into the store, as the part `base` (docs/format.md).

They are read when the capture is put, some time after it was taken. So one that has changed since is left out: whoever
needs it is told so, in place of getting another one.
"""

import contextlib
import itertools
import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from waypoint.capture.base_files.base_listing import BaseListing, BaseRow, kept_xattrs, lower_of, opened_in_base
from waypoint.capture.base_files.mentioned import BaseFile, Mentioned, files_of_base
from waypoint.linux.calls import powers
from waypoint.linux.storage import access, beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import procfs
from waypoint.model.records import Capture, User
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.trees import entries
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.entries import TreeEntry
from waypoint.store.trees.gathering import Gathering, put_content, put_root, put_trees
from waypoint.upper import layout

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COARSE_S = 0.02
"""So far the clocks of file systems may be behind."""
_NOTED_S = 1.0
"""So long after its pause a capture may have been noted."""
_CHANGED = "has changed since"
_MOST_TOLD = 1 << 20
"""Characters that an image has of what it lacks: its manifest must fit into one object."""


class AlikeBase(NamedTuple):
    """The part `base` of another image, of which much may be the same, and a moment before that image was taken, in
    nanoseconds since the epoch.
    """

    part: Earlier
    taken: int


class PutBase(NamedTuple):
    """`root`: empty if there are no such files."""

    root: bytes
    listing: BaseListing


class _Found(NamedTuple):
    file: BaseFile
    facts: os.stat_result
    xattrs: list[tuple[bytes, bytes]]


def moment_of(capture: Capture) -> int:
    """A moment before the capture, in nanoseconds since the epoch: what has not changed since is what it had. It is by
    the clock of then or of now, whichever is earlier: the clock may have been set since.
    """
    moment = capture.created - (capture.paused_ms or 0.0) / 1000 - _NOTED_S
    if capture.machine is not None and capture.machine.boot_id == procfs.boot_id():
        moment = min(moment, time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - capture.clock))
    return int((moment - _COARSE_S) * 1e9)


def put_base(
    writer: ObjectWriter,
    capture: Capture,
    places: tuple[str, str],
    alike: list[AlikeBase],
    most: int,
    hidden: list[str],
) -> PutBase:
    """Put the files of the base that the processes of the capture have; the caller commits. `places`: the paths of its
    upper tree, and of the folder of CRIU's images. `alike`: what they have of these need not be read again. `most`: how
    many bytes the files may have in all. `hidden`: folders of the machine of which nothing is put. Raises OSError,
    StoreDamaged; ValueError if CRIU's images are none.
    """
    processes = capture.layers.processes
    tree, images = places
    if processes is None or not os.path.isdir(images):
        return PutBase(b"", BaseListing())
    with open_folder(images) as fd:
        mentioned = files_of_base(fd, processes, tree)
    root = capture.setting.base.rstrip("/")
    mentioned = [one for one in mentioned if not any(f"{root}{one.file.place}/".startswith(f"{at}/") for at in hidden)]
    base = _Base(capture.setting.base, capture.setting.user)
    found, left_out = _chosen(base, mentioned, moment_of(capture), most)
    job = Gathering(writer, alike[0].part if alike else Earlier(writer, b""))
    return _put_all(_Putting(job, base, alike), found, left_out)


def _chosen(base: "_Base", mentioned: list[Mentioned], taken: int, most: int) -> tuple[list[_Found], list[str]]:
    """The files that can be kept, and in words those that cannot. The largest are left out of what is too much."""
    found: list[_Found] = []
    left_out: list[str] = []
    for one in mentioned:
        judged = _judged(base, one, taken)
        if isinstance(judged, str):
            left_out.append(f"{one.file.shown}: {judged}")
        else:
            found.append(judged)
    kept: list[_Found] = []
    for each in sorted(found, key=lambda one: one.facts.st_size):
        most -= each.facts.st_size
        if most < 0:
            left_out.append(f"{each.file.shown}: with it, there would be too much (base_files_bytes in config.json)")
        else:
            kept.append(each)
    return sorted(kept), left_out


class _Base(NamedTuple):
    """The base of a session. `user`: with whose rights its files are read: the image may be given to this user."""

    path: str
    user: User

    @contextlib.contextmanager
    def opened(self, file: BaseFile) -> Iterator[int]:
        """A descriptor (O_PATH) of the file, and in the `with` block the rights of the user. Raises OSError."""
        with contextlib.ExitStack() as held:
            root = held.enter_context(open_folder(lower_of(self.path, file.target)))
            held.enter_context(self._looking())
            yield held.enter_context(beneath.opened(root, file.path, across=False))

    def _looking(self) -> contextlib.AbstractContextManager[None]:
        user = self.user
        if not powers.is_machines() or user.uid == 0:
            return contextlib.nullcontext()
        return access.as_user(user.uid, user.gid, user.groups)

    def folder(self, target: str, path: bytes) -> os.stat_result | None:
        """What is to be known of the folder at `path`; None if it is not there any more."""
        with contextlib.suppress(OSError), opened_in_base(self.path, BaseFile(target, path)) as fd:
            return os.fstat(fd)
        return None


def _judged(base: _Base, one: Mentioned, taken: int) -> _Found | str:
    """What is to be kept; or why the file cannot be kept, in words."""
    try:
        with base.opened(one.file) as fd:
            facts = os.fstat(fd)
            access.check(beneath.name_of(fd), write=False)
            xattrs = kept_xattrs(beneath.name_of(fd))
    except PermissionError:
        return f"{base.user.name} may not read it"
    except OSError as error:
        return f"it is not there any more: {error.strerror}"
    is_same = stat.S_ISREG(facts.st_mode) and facts.st_ctime_ns <= taken and one.size in (None, facts.st_size)
    return _Found(one.file, facts, xattrs) if is_same else _CHANGED


class _Putting(NamedTuple):
    job: Gathering
    base: _Base
    alike: list[AlikeBase]

    def put(self, one: _Found, entry: TreeEntry, path: list[bytes]) -> bool:
        """Put the file's content, and note it in its entry. Returns whether it was the same all the time."""
        for alike in self.alike:
            before = alike.part.find(path)
            if before is None or one.facts.st_ctime_ns > alike.taken or before.size != one.facts.st_size:
                continue
            if msgspec.structs.replace(before, rows=[], lists=False) == entry:
                entry.rows, entry.lists = before.rows, before.lists
                return True
        return self._read(one, entry, path)

    def _read(self, one: _Found, entry: TreeEntry, path: list[bytes]) -> bool:
        try:
            with self.base.opened(one.file) as found:
                fd = os.open(beneath.name_of(found), _READ)
        except OSError:  # whatever has come in its place
            return False
        try:
            if _stamp(os.fstat(fd)) != _stamp(one.facts):
                return False
            put_content(self.job, entry, fd, path, one.facts.st_size)
            return _stamp(os.fstat(fd)) == _stamp(one.facts)
        except EOFError:
            return False
        finally:
            os.close(fd)


def _put_all(putting: _Putting, found: list[_Found], left_out: list[str]) -> PutBase:
    job, base, _ = putting
    inside: dict[tuple[bytes, ...], list[TreeEntry]] = defaultdict(list)
    targets: dict[bytes, str] = {}
    rows: list[BaseRow] = []
    for one in found:
        top = os.fsencode(layout.folder_of(one.file.target))
        *above, name = path = [top, *one.file.name.split(b"/")]
        entry = _bare(name, entries.REGULAR, one.facts, one.xattrs)
        if not putting.put(one, entry, path):
            left_out.append(f"{one.file.shown}: {_CHANGED}")
            continue
        targets[top] = one.file.target
        inside[tuple(above)].append(entry)
        rows.append(BaseRow(one.file, one.facts.st_size, one.facts.st_mtime_ns))
    listing = BaseListing(rows, _bounded(sorted(left_out)))
    if not rows:
        return PutBase(b"", listing)
    folders = {folder[:depth] for folder in inside for depth in range(1, len(folder) + 1)}
    for folder in sorted(folders, key=len, reverse=True):
        facts = base.folder(targets[folder[0]], b"/".join(folder[1:]))
        entry = _bare(folder[-1], entries.FOLDER, facts)
        entry.rows = put_trees(job, list(folder), inside[folder])
        inside[folder[:-1]].append(entry)
    root = _bare(b"", entries.FOLDER, None)
    root.rows = put_trees(job, [], inside[()])
    return PutBase(put_root(job, root), listing)


def _bounded(left_out: list[str]) -> list[str]:
    """The lines, as far as there is room for them, and how many more there are."""
    lengths = itertools.accumulate(len(line) for line in left_out)
    told = sum(length <= _MOST_TOLD for length in lengths)
    more = len(left_out) - told
    return left_out[:told] + ([f"and {more} more files"] if more else [])


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _bare(
    name: bytes, kind: int, facts: os.stat_result | None, xattrs: Sequence[tuple[bytes, bytes]] = ()
) -> TreeEntry:
    """The entry without content. Folders have no time, so that they stay the same when others change in them."""
    mode, uid, gid = (stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid) if facts else (0o755, 0, 0)
    mtime = facts.st_mtime_ns if facts is not None and kind == entries.REGULAR else 0
    return TreeEntry(name=name, kind=kind, mode=mode, uid=uid, gid=gid, mtime=mtime, xattrs=list(xattrs), rows=[])


def listing_in(earlier: Earlier, left_out: list[str]) -> BaseListing:
    """The listing of the part that `earlier` reads. Raises StoreDamaged, OSError."""
    rows: list[BaseRow] = []
    waiting: list[list[bytes]] = [[]]
    while waiting:
        path = waiting.pop()
        for name, entry in earlier.inside(path).items():
            if entry.kind == entries.FOLDER:
                waiting.append([*path, name])
            elif entry.kind == entries.REGULAR and path:
                file = BaseFile(layout.target_of(os.fsdecode(path[0])), b"/".join([*path[1:], name]))
                rows.append(BaseRow(file, entry.size, entry.mtime))
    return BaseListing(sorted(rows, key=lambda row: row.file), left_out)
