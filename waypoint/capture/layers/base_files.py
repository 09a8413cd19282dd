"""Files of the base that the processes of a capture have open or mapped.

CRIU opens them by path, and refuses one with another size, mode or build id. So the capture keeps them, and a restore
copies those that the machine has changed since into the files of the new session; no other session sees these copies.

The capture's folder `base` has `files.json` (BaseFiles) and the contents. A content is named after what identifies a
version of a file on this machine; the same version in another capture of the home is a link to the same content.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.hot import BASE_LISTING
from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.subject import Subject
from waypoint.linux.storage import beneath, files
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation, degradation, some_of
from waypoint.model.paths import OWN_FOLDER, is_below
from waypoint.model.records import Capture, Fixed
from waypoint.processes.criu.comparison import OpenedFile, opened_files
from waypoint.upper import layout, placing
from waypoint.upper.placing import Occupied, Where

MAX_BYTES = 512 << 20
"""Of all files of one capture. Larger ones are left out."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES = 1 << 30
_CONTENT = re.compile(r"[0-9a-f]{32}")
_SET_ID = stat.S_ISUID | stat.S_ISGID

_Id = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 32) - 1)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: in the session. `mtime`: in nanoseconds. `uid`, `gid`: on disk. `content`: the name of its content."""

    path: str
    size: _Number
    mtime: _Number
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
    uid: _Id
    gid: _Id
    content: str


class BaseFiles(msgspec.Struct, frozen=True):
    """`left_out`: by path, why the capture does not have a file."""

    files: list[BaseFile] = []
    left_out: dict[str, str] = {}


class _Found(NamedTuple):
    path: str
    target: str
    facts: os.stat_result


class _LeftOut(Exception):
    """A file is not kept; the text says why."""


def keep(area: Area, capture_id: str, subject: Subject, since: int) -> None:
    """Copy the files into the capture's folder, while the session runs again. They are read as the session sees them,
    which sees the former version of a file that the machine has replaced. `since`: a time before the pause, in
    nanoseconds: a file that has changed since is left out. Raises OSError, ValueError, Failed; nothing is kept then.
    """
    folder, facts = area.hot.base(capture_id), subject.facts
    with open_folder(area.hot.images(capture_id)) as images_fd:
        mentioned = _of_base(images_fd, facts.fixed, area.pool.path(capture_id))
    if not mentioned:
        return
    folder.mkdir(mode=0o700)
    try:
        with contextlib.ExitStack() as held:
            listing = _Keeper(area, folder, subject, since, held).keep(mentioned)
        (folder / BASE_LISTING).write_bytes(msgspec.json.encode(listing))
    except BaseException:
        shutil.rmtree(folder)
        raise


def differing(area: Area, origin: Capture) -> list[BaseFile]:
    """The kept files of which the machine now has another version, by size, time and mode, or none. Raises
    StoreDamaged.
    """
    kept = _load(area, origin).files
    if not kept:
        return []
    with open_folder(origin.setting.base) as base:
        return [file for file in kept if not _is_same(base, file)]


def put_differing(area: Area, origin: Capture, where: Where, *, is_shifted: bool) -> None:
    """Copy these files to the files of a session that has not started. A file whose path the session has moved cannot
    be placed. One with a set-user-ID bit is only placed in a session with shifted ids, since an image may come from
    another machine. CRIU reports those that are not placed. Raises StoreDamaged, OSError.
    """
    for file in differing(area, origin):
        if file.mode & _SET_ID and not is_shifted:
            continue
        with contextlib.suppress(Occupied), _opened_content(area, origin, file) as content:

            def copy(folder: int, target: str, file: BaseFile = file, content: int = content) -> None:
                _write(content, os.path.basename(target), folder, file)

            placing.place(where, file.path, (0, 0), copy, over_base=True)


def changed_on_machine(area: Area, origin: Capture) -> list[Degradation]:
    """What a restore reports about these files."""
    paths = [file.path for file in differing(area, origin)]
    return [degradation("base-files-changed", some_of(paths))] if paths else []


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
        base = subject.facts.setting.base.rstrip("/")
        for target in self._fixed.overlays:
            mount = held.enter_context(beneath.opened(root, target))
            self._mounts[target] = mount, os.statvfs(f"{base}{target}").f_fsid

    def keep(self, mentioned: list[tuple[str, OpenedFile]]) -> BaseFiles:
        found: list[_Found] = []
        left_out: dict[str, str] = {}
        for target, one in mentioned:
            try:
                with self._opened(target, one.path) as fd:
                    found.append(_Found(one.path, target, self._looked_at(fd, one.size)))
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
            new_bytes += 0 if (self._cache / self._name(each)).exists() else each.facts.st_size
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

    def _name(self, one: _Found) -> str:
        """With the boot's id: after a power loss, a content may be incomplete."""
        facts = one.facts
        parts = (self._boot, self._mounts[one.target][1], facts.st_ino, facts.st_size, facts.st_mtime_ns)
        return hashlib.sha256(repr((*parts, facts.st_ctime_ns)).encode()).hexdigest()[:32]

    def _kept(self, one: _Found) -> BaseFile:
        facts, ids = one.facts, self._fixed.ids
        kept = BaseFile(
            path=one.path,
            size=facts.st_size,
            mtime=max(0, facts.st_mtime_ns),
            mode=stat.S_IMODE(facts.st_mode),
            uid=ids.inside(facts.st_uid),
            gid=ids.inside(facts.st_gid),
            content=self._name(one),
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
            if target not in uppers or is_below(one.path, f"/{OWN_FOLDER}") or not one.path.isprintable():
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


def _load(area: Area, origin: Capture) -> BaseFiles:
    path = area.hot.base(origin.id) / BASE_LISTING
    try:
        content = files.read_own(str(path))
        found = msgspec.json.decode(content, type=BaseFiles)
    except FileNotFoundError:  # there are none; or the capture is of an earlier version
        return BaseFiles()
    except (OSError, msgspec.MsgspecError) as error:
        raise damaged(origin, f"{path} cannot be read: {error}") from error
    for file in found.files:
        parts = file.path.split("/")
        if parts[0] or any(part in ("", ".", "..") for part in parts[1:]) or "\0" in file.path:
            raise damaged(origin, f"{path} has a file with the path {file.path!r}")
        if not _CONTENT.fullmatch(file.content):
            raise damaged(origin, f"{path} has a content with the name {file.content!r}")
    return found


def _is_same(base: int, file: BaseFile) -> bool:
    try:
        with beneath.opened(base, file.path) as fd:
            facts = os.fstat(fd)
    except OSError:
        return False
    now = facts.st_mode, facts.st_size, max(0, facts.st_mtime_ns)
    return now == (stat.S_IFREG | file.mode, file.size, file.mtime)


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
    finally:
        os.close(fd)


def _send(source: int, target: int) -> None:
    while os.sendfile(target, source, None, _COPY_BYTES):
        pass
