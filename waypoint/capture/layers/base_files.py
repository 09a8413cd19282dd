"""Files of the base that the processes of a capture have open or mapped.

CRIU opens them by path, and refuses one with another size, mode or build id. So the capture keeps them, and a restore
copies those that the machine has changed since into the files of the new session; no other session sees these copies.
The script of pid 1 is among them, which a later version of Waypoint may change. Of the files of a pinned base, which
never change, none is kept.

The capture's folder `base` has `files.json` (BaseFiles, base_listing.py) and the contents. A content is named after
what identifies a version of a file on this machine; the same version in another capture of the home is a link to the
same content.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.capture.layers import base_listing
from waypoint.capture.layers.base_listing import LISTING, BaseFile, BaseFiles, is_own, name_of, parse
from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath, files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation, degradation, some_of
from waypoint.model.errors import CannotCapture, Failed, of_machine
from waypoint.model.paths import is_below
from waypoint.model.records import Capture, Fixed
from waypoint.processes.criu.comparison import OpenedFile, opened_files
from waypoint.upper import layout, placing
from waypoint.upper.changes import mark_former
from waypoint.upper.placing import Occupied, Where

MAX_BYTES = 512 << 20
"""Of all files of one capture. Larger ones are left out."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES = 1 << 30
_CAPABILITY = "security.capability"
_SET_ID = stat.S_ISUID | stat.S_ISGID


class _Found(NamedTuple):
    """`target`: the mount point. `content`: the name of its content."""

    path: str
    target: str
    facts: os.stat_result
    content: str
    is_capable: bool


class _LeftOut(Exception):
    """A file is not kept; the text says why."""


def keep(area: Area, capture_id: str, subject: Subject, since: int) -> list[Degradation]:
    """Copy the files into the capture's folder, while the session runs again. They are read as the session sees them,
    which sees the former version of a file that the machine has replaced. `since`: a time before the pause, in
    nanoseconds: a file that has changed since is left out. Returns what is not kept.
    """
    folder, facts = area.hot.base(capture_id), subject.facts
    try:
        with open_folder(area.hot.images(capture_id)) as images_fd:
            mentioned = _of_base(images_fd, facts.fixed, area.pool.path(capture_id))
        if facts.setting.pinned is not None:
            mentioned = [(target, one) for target, one in mentioned if is_own(one.path)]
        folder.mkdir(mode=0o700)
        with contextlib.ExitStack() as held:
            listing = _Keeper(area, folder, subject, since, held).keep(mentioned)
        files.publish(str(folder / LISTING), msgspec.json.encode(listing), durable=False)  # a restore may read it now
    except (OSError, ValueError, Failed) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = error.said if isinstance(error, Failed) else str(error)
        return [degradation("base-files-not-kept", "", said)]
    if not listing.left_out:
        return []
    return [degradation("base-files-not-kept", some_of(list(listing.left_out)), next(iter(listing.left_out.values())))]


def differing(area: Area, origin: Capture) -> list[BaseFile]:
    """The kept files of which the machine now has another version, or none. Raises StoreDamaged."""
    return base_listing.differing(_listed(area, origin), _compared(origin))


def lost(area: Area, origin: Capture) -> list[Degradation]:
    """What a capture lacks of which `keep` has not answered."""
    if origin.tier != "live" or (area.hot.base(origin.id) / LISTING).exists():
        return []
    said = "Waypoint's daemon has ended before they were copied, or is newer than the capture"
    return [degradation("base-files-not-kept", "", said)]


def missing(area: Area, origin: Capture) -> list[str]:
    """The names of the contents that `put_differing` needs, and that are not on disk: when the capture was extracted
    from the store, the machine still had these files.
    """
    folder = area.hot.base(origin.id)
    return [file.content for file in differing(area, origin) if not (folder / file.content).exists()]


def fill(area: Area, origin: Capture) -> None:
    """Copy the contents that are not on disk since the machine has these files (`missing`). Raises Failed."""
    folder = area.hot.base(origin.id)
    lacking = [file for file in _listed(area, origin) if not (folder / file.content).exists()]
    changed = {file.content for file in base_listing.differing(lacking, _compared(origin))}
    present = {file.content: file for file in lacking if file.content not in changed}
    if not present:
        return
    try:
        with open_folder(_compared(origin)) as base:
            for content, file in present.items():
                with contextlib.ExitStack() as undo, base_listing.opened(base, file) as fd:
                    undo.callback((folder / content).unlink, missing_ok=True)
                    with (folder / content).open("xb") as copy:
                        _send(fd, copy.fileno())
                    undo.pop_all()
    except OSError as error:
        said, on = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip(), f"capture {origin.id[:12]}"
        raise Failed("copy the files of the base of", on, said, "try again", code=of_machine(error.errno)) from error


def _compared(origin: Capture) -> str:
    """The folder of the machine whose files are compared. On a pinned base there are none but Waypoint's own."""
    return origin.setting.base if origin.setting.pinned is None else "/"


def _listed(area: Area, origin: Capture) -> list[BaseFile]:
    path = area.hot.base(origin.id) / LISTING
    try:
        found = parse(files.read_own(str(path)))
        return found if origin.setting.pinned is None else [file for file in found if is_own(file.path)]
    except FileNotFoundError:  # they are still being copied, so the machine has them; or an earlier version took it
        return []
    except (OSError, ValueError) as error:
        raise damaged(origin, f"{path} cannot be read: {error}") from error


def put_differing(area: Area, origin: Capture, where: Where, *, is_shifted: bool) -> None:
    """Copy these files to the files of a session that has not started. A file whose path the session has moved cannot
    be placed; CRIU reports it. Raises CannotCapture for a file with a set-user-ID bit unless the session has shifted
    ids, since an image may come from another machine; StoreDamaged, OSError.
    """
    found = differing(area, origin)
    for target in where.overlays if found else ():
        with open_folder(layout.upper_of(where.tree, target)) as upper:
            mark_former(upper)
    for file in found:
        if file.mode & _SET_ID and not is_shifted:
            said = f"they have {file.path} open, whose former version has a set-user-ID bit; sessions here have no "
            raise CannotCapture(
                "restore the processes of",
                origin.id[:12],
                said + "ids of their own, in which such a file is harmless",
                "restore it without its processes: --tier respawn",
                code="base-file-refused",
            )
        with contextlib.suppress(Occupied), _opened_content(area, origin, file) as content:

            def copy(folder: int, target: str, file: BaseFile = file, content: int = content) -> None:
                _write(content, os.path.basename(target), folder, file)

            placing.place(where, file.path, (0, 0), copy, over_base=True)


def changed_on_machine(area: Area, origin: Capture) -> list[Degradation]:
    """What a restore reports about these files."""
    found = [file for file in differing(area, origin) if not is_own(file.path)]
    capable = [file.path for file in found if file.is_capable]
    return [
        *([degradation("base-files-changed", some_of([file.path for file in found]))] if found else []),
        *([degradation("base-files-not-capable", some_of(capable))] if capable else []),
    ]


class _Keeper:
    """Copies files from a session's mounts, which `held` keeps open. `folder`: the capture's folder for the files."""

    def __init__(self, area: Area, folder: Path, subject: Subject, since: int, held: contextlib.ExitStack) -> None:
        self._area, self._folder, self._subject, self._since = area, folder, subject, since
        self._fixed = subject.facts.fixed
        self._mounts: dict[str, tuple[int, int]] = {}  # by mount point: its root, and the id of the base's file system
        self._cache = area.hot.base_contents()
        self._boot = procfs.boot_id()
        root = procfs.open_root(subject.facts.init_pid)
        held.callback(os.close, root)
        base = area.base_folder(subject.facts.setting.base).rstrip("/")
        for target in self._fixed.overlays:
            mount = held.enter_context(beneath.opened(root, target))
            try:
                facts = os.statvfs(f"{base}{target}")
            except OSError:  # it was a mount that is gone; this session may still see its files
                facts = os.fstatvfs(mount)
            self._mounts[target] = mount, facts.f_fsid

    def keep(self, mentioned: list[tuple[str, OpenedFile]]) -> BaseFiles:
        found: list[_Found] = []
        left_out: dict[str, str] = {}
        for target, one in mentioned:
            try:
                with self._opened(target, one.path) as fd:
                    facts = self._looked_at(fd, one.size)
                    is_capable = _CAPABILITY in os.listxattr(fd)
                    found.append(_Found(one.path, target, facts, self._name(one.path, target, fd, facts), is_capable))
            except (_LeftOut, OSError) as error:
                left_out[one.path] = str(error)
        found.sort(key=lambda one: one.facts.st_size)
        left, new_bytes = MAX_BYTES, 0
        chosen = []
        for each in found:
            left -= each.facts.st_size
            if left < 0:
                left_out[each.path] = f"the files of the base have more than {MAX_BYTES >> 20} MiB"
                continue
            chosen.append(each)
            new_bytes += 0 if (self._cache / each.content).exists() else each.facts.st_size
        if new_bytes:
            on = f"capture {self._folder.parent.name[:12]}"
            self._area.check_space(new_bytes, "files of the base", "keep", on)
        kept = []
        for each in chosen:
            try:
                kept.append(self._kept(each))
            except _LeftOut as error:
                left_out[each.path] = str(error)
        return BaseFiles(sorted(kept, key=lambda one: one.path), left_out)

    @contextlib.contextmanager
    def _opened(self, target: str, path: str) -> Iterator[int]:
        fd = beneath.open_beneath(self._mounts[target][0], os.path.relpath(path, target), _READ, across=False)
        try:
            yield fd
        finally:
            os.close(fd)

    def _looked_at(self, fd: int, size: int | None) -> os.stat_result:
        facts, user = os.fstat(fd), self._subject.facts.setting.user
        if not stat.S_ISREG(facts.st_mode):
            raise _LeftOut("it is no file any more")
        if facts.st_ctime_ns > self._since or size not in (None, facts.st_size):
            raise _LeftOut("it has changed since the capture began")
        if not facts.st_mode & stat.S_IROTH and user.uid not in (0, self._fixed.ids.inside(facts.st_uid)):
            raise _LeftOut("the session's user may not read it")
        return facts

    def _name(self, path: str, target: str, fd: int, facts: os.stat_result) -> str:
        """With the boot's id: after a power loss, a content may be incomplete."""
        if is_own(path):
            return name_of(os.pread(fd, facts.st_size, 0))
        parts = (self._boot, self._mounts[target][1], facts.st_ino, facts.st_size, facts.st_mtime_ns)
        return name_of(repr((*parts, facts.st_ctime_ns)).encode())

    def _kept(self, one: _Found) -> BaseFile:
        facts, ids = one.facts, self._fixed.ids
        kept = BaseFile(
            path=one.path,
            size=facts.st_size,
            mtime=max(0, facts.st_mtime_ns),
            mode=stat.S_IMODE(facts.st_mode),
            uid=ids.inside(facts.st_uid),
            gid=ids.inside(facts.st_gid),
            content=one.content,
            is_capable=one.is_capable,
        )
        target, cached = self._folder / kept.content, self._cache / kept.content
        if target.exists():  # another name of the same file
            return kept
        try:
            os.link(cached, target)
        except OSError:  # there is none, or it has too many links
            self._copy(one, target)
            with contextlib.suppress(OSError):
                os.link(target, cached)
        return kept

    def _copy(self, one: _Found, target: Path) -> None:
        with self._opened(one.target, one.path) as fd, target.open("xb") as copy:
            _send(fd, copy.fileno())
            facts = os.fstat(fd)
            is_same = all(
                getattr(facts, name) == getattr(one.facts, name) for name in ("st_ino", "st_size", "st_ctime_ns")
            )
            if not is_same or os.fstat(copy.fileno()).st_size != facts.st_size:
                target.unlink()
                raise _LeftOut("it has changed since the capture began")


def _of_base(images_fd: int, fixed: Fixed, tree: str) -> list[tuple[str, OpenedFile]]:
    """The files in the images that lie in overlays, but not in their upper directories, each with the mount point.
    `tree`: the capture's upper tree.
    """
    found = {}
    with contextlib.ExitStack() as held:
        uppers = {one: held.enter_context(open_folder(layout.upper_of(tree, one))) for one in fixed.overlays}
        for one in opened_files(images_fd):
            target = max((at for at in fixed.outside if is_below(one.path, at)), key=len, default="")
            if target not in uppers or is_below(one.path, "/proc") or not one.path.isprintable():
                continue
            if one.path not in found and _is_missing(uppers[target], target, one.path):
                found[one.path] = (target, one)
    return list(found.values())


def _is_missing(upper: int, target: str, path: str) -> bool:
    try:
        with beneath.opened(upper, os.path.relpath(path, target)):
            return False
    except OSError as error:
        return error.errno == errno.ENOENT


@contextlib.contextmanager
def _opened_content(area: Area, origin: Capture, file: BaseFile) -> Iterator[int]:
    folder = area.hot.base(origin.id)
    try:
        fd = os.open(folder / file.content, _READ | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise damaged(origin, f"the content of {file.path} cannot be read: {error.strerror}") from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != file.size:
            raise damaged(origin, f"the content of {file.path} in {folder} is not a file of {file.size} bytes")
        yield fd
    finally:
        os.close(fd)


def _write(content: int, name: str, folder: int, file: BaseFile) -> None:
    fd = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        _send(content, fd)
        os.fchown(fd, file.uid, file.gid)
        os.fchmod(fd, file.mode)  # after the owner, which clears set-user-ID bits
        os.utime(fd, ns=(file.mtime, file.mtime))
        mark_former(fd)
    finally:
        os.close(fd)


def _send(source: int, target: int) -> None:
    while os.sendfile(target, source, None, _COPY_BYTES):
        pass
