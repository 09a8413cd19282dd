"""Applying the layers of a container image to a folder.

Sources: the OCI image specification 1.1 (layer.md), overlayfs.rst of the kernel. A layer may be hostile: paths are
resolved as in a process whose root is the folder, so neither `..` nor a link leads out of it; no device is made; names,
sizes and amounts are bounded. Digests are compared at the end of each layer, so a folder is usable only after the last.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, cast

from waypoint.linux.storage import beneath, deep, files
from waypoint.linux.storage.descriptors import path_of
from waypoint.store import entries
from waypoint.store.archives.layout import BadLayout
from waypoint.store.entries import TreeEntry
from waypoint.store.extract import finish
from waypoint.store.oci.files import PIECE, Header, Part, decompressed, forget_members, refusing_tar, too_large
from waypoint.store.oci.manifests import Layer

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_KEPT = ("user.", "system.posix_acl_")
_CAPABILITY = "security.capability"
_MAX_HEADERS = 2 << 20
"""Bytes of all headers of one member: names, attributes, and the map of a file with holes."""
_MAX_ENTRIES = 1 << 22
_MAX_PATH = 4095
_BUFFER = 32 << 10
_TYPES = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE), entries.FILE),
    tarfile.DIRTYPE: entries.FOLDER,
    tarfile.SYMTYPE: entries.SYMLINK,
    tarfile.FIFOTYPE: entries.FIFO,
}
_DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)
_MAX_ID = (1 << 32) - 2
_NANO = 10**9
_TIME = re.compile(r"(-?)(\d{1,11})(?:\.(\d*))?")
_REFUSED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV),
    *(errno.EINVAL, errno.EPERM, errno.EMLINK, errno.EFBIG, errno.E2BIG, errno.ERANGE, errno.EOPNOTSUPP),
)
"""What the kernel reports for members that no file system can have."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class LayerFile:
    """A layer that is being read: a file for tarfile with the tar without compression, at most `max_bytes`. It can be
    read from start to end only.
    """

    def __init__(self, part: Part, layer: Layer, max_bytes: int, on_progress: Callable[[int], None]) -> None:
        self._part = _Hashed(part)
        self._layer = layer
        self._max_bytes = max_bytes
        self._on_progress = on_progress
        self._held = contextlib.ExitStack()
        with refusing_tar():
            self._plain = self._held.enter_context(decompressed(self._part))
        self._hasher = hashlib.sha256()
        self._size = 0  # of what was decompressed
        self._allowed: int | None = None
        self._buffer, self._used = b"", 0
        self._place = 0

    def read(self, size: int) -> bytes:
        parts = [self._buffer[self._used : self._used + size]]
        missing = size - len(parts[0])
        self._used += len(parts[0])
        while missing and (piece := self._decompress(min(max(missing, _BUFFER), PIECE))):
            parts.append(piece[:missing])
            self._buffer, self._used = piece, len(parts[-1])
            missing -= len(parts[-1])
        self._place += size - missing
        return b"".join(parts)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int) -> int:
        if place < self._place:
            raise BadLayout("its members overlap")
        while self._place < place and self.read(min(PIECE, place - self._place)):
            pass
        return self._place

    def _decompress(self, size: int) -> bytes:
        piece = self._plain.read(size)
        self._hasher.update(piece)
        self._size += len(piece)
        if self._size > self._max_bytes:
            raise too_large(self._max_bytes)
        if self._allowed is not None and self._size > self._allowed:
            raise BadLayout("a member has a name, attributes or a map of holes that are too long")
        return piece

    @contextlib.contextmanager
    def headers_only(self) -> Iterator[None]:
        """For the `with` block, allow no more bytes than the headers of one member may have."""
        self._allowed = self._size + _MAX_HEADERS
        yield
        self._allowed = None
        self._on_progress(self._size)

    def finish(self) -> int:
        """Read the rest, and compare size and digests. Returns the bytes without compression."""
        with refusing_tar(), self._held:
            while self._decompress(PIECE):
                pass
            while self._part.read(PIECE):
                pass
        one = self._layer.descriptor
        if one is not None and (self._part.size, self._part.digest()) != (one.size, one.digest):
            raise BadLayout(f"the layer {one.digest[7:23]} has another size or digest than its descriptor")
        if f"sha256:{self._hasher.hexdigest()}" != self._layer.diff_id:
            raise BadLayout(f"the layer {self._layer.diff_id[7:23]} has another content than the configuration states")
        return self._size


class _Hashed:
    """Reads a part of a file, and computes its digest."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._hasher = hashlib.sha256()
        self.size = part.size

    def read(self, size: int = -1) -> bytes:
        piece = self._part.read(size)
        self._hasher.update(piece)
        return piece

    def digest(self) -> str:
        return f"sha256:{self._hasher.hexdigest()}"


class _Above(NamedTuple):
    """The open folder of a member. `path`: where it really is, below the tree."""

    fd: int
    path: str

    def of(self, name: str) -> str:
        return f"{self.path}/{name}".lstrip("/")


class Tree:
    """The open folder that layers are applied to, lowest first. Nobody else may change it.

    `devices`, `attributes`: how many of them were left out, by path or by name.
    """

    def __init__(self, root: int) -> None:
        os.fchmod(root, 0o755)
        os.chown(root, 0, 0)
        self._root = root
        self._root_path = path_of(root)
        self._times = {"": 0}  # modification times of folders, which are set at the end
        self._made: set[str] = set()  # paths of the present layer
        self._opaque: set[str] = set()
        self._above: tuple[str, _Above] | None = None
        self._entries = 0
        self.devices: list[str] = []
        self.attributes: Counter[str] = Counter()

    def apply(self, layer: LayerFile) -> None:
        """Apply a layer. Raises BadLayout, OSError."""
        self._made, self._opaque = {""}, set()
        try:
            with refusing_tar(), layer.headers_only():
                tar = tarfile.open(fileobj=cast(BinaryIO, layer), mode="r:", tarinfo=Header)  # noqa: SIM115
            with tar:
                while True:
                    with refusing_tar(), layer.headers_only():
                        info = tar.next()
                        forget_members(tar)
                    if info is None:
                        break
                    self._entries += 1
                    if self._entries > _MAX_ENTRIES:
                        raise BadLayout(f"it has more than {_MAX_ENTRIES} files")
                    with _naming(info.name):
                        self._apply_member(tar, info)
        finally:
            self._forget_above()

    def finish(self) -> None:
        """Set the times of folders."""
        for path, mtime in self._times.items():
            try:
                with beneath.opened(self._root, path, _FOLDER) as fd:
                    os.utime(fd, ns=(mtime, mtime))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # removed by a later layer
                    raise

    def _apply_member(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        path = _plain(info.name)
        entry = _entry(info, path, self.attributes)
        if not path:
            if entry is None or entry.type != entries.FOLDER:
                raise BadLayout("its root is no folder")
            self._set_facts(self._root, entry, "")
            return
        parent, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            self._remove_lower(parent, name)
            return
        above = self._enter(parent, _mtime(info))
        self._note_time(above)
        self._add_made(above.of(name))
        if entry is not None and entry.type == entries.FOLDER:
            self._make_folder(above, name, entry)
            return
        self._remove(above, name)
        if info.islnk():
            self._link(above, name, _plain(info.linkname))
        elif entry is None:
            self.devices.append(path)
        elif entry.type == entries.FILE:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=above.fd)
            try:
                _write(tar, info, fd)
                finish(fd, entry)
            finally:
                os.close(fd)
        else:
            if entry.type == entries.SYMLINK:
                os.symlink(info.linkname, name, dir_fd=above.fd)
            else:
                os.mkfifo(name, 0o600, dir_fd=above.fd)
            finish(os.fsencode(f"{beneath.name_of(above.fd)}/{name}"), entry)

    def _make_folder(self, above: _Above, name: str, entry: TreeEntry) -> None:
        try:
            is_new = not stat.S_ISDIR(os.stat(name, dir_fd=above.fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            is_new = True
        if is_new:
            self._remove(above, name)
            os.mkdir(name, 0o700, dir_fd=above.fd)
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above.fd)
        try:
            self._set_facts(fd, entry, above.of(name))
        finally:
            os.close(fd)

    def _set_facts(self, fd: int, entry: TreeEntry, path: str) -> None:
        """Set owner, attributes and mode of a folder, which may have those of a lower layer."""
        for name in os.listxattr(fd):
            if name.startswith(_KEPT):
                os.removexattr(fd, name)
        finish(fd, entry)
        self._times[path] = entry.mtime

    def _link(self, above: _Above, name: str, target: str) -> None:
        parent, _, last = target.rpartition("/")
        fd = beneath.open_in_root(self._root, parent, _FOLDER)
        try:
            os.link(last, name, src_dir_fd=fd, dst_dir_fd=above.fd, follow_symlinks=False)
        finally:
            os.close(fd)

    # --- what is below

    def _remove_lower(self, parent: str, name: str) -> None:
        """Obey a whiteout, which concerns only what lower layers have made."""
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise BadLayout("it is an impossible whiteout")
        if name != _OPAQUE and hidden.startswith(_WHITEOUT):
            return  # a note of AUFS
        try:
            above = self._opened(parent)
        except (FileNotFoundError, NotADirectoryError):
            return  # nothing is there
        if name == _OPAQUE:
            self._clear(above.path)
            return
        path = above.of(hidden)
        if path not in self._made:
            self._note_time(above)
            self._remove(above, hidden)
        elif stat.S_ISDIR(os.stat(hidden, dir_fd=above.fd, follow_symlinks=False).st_mode):
            self._clear(path)

    def _clear(self, path: str) -> None:
        """Remove what lower layers have made in the folder."""
        waiting = [] if self._is_cleared(path) else [path]
        self._opaque.add(path)
        while waiting:
            path = waiting.pop()
            with beneath.opened(self._root, path, _FOLDER) as fd:
                above = _Above(fd, path)
                self._note_time(above)
                with os.scandir(fd) as found:
                    there = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
                for name, is_folder in there:
                    if above.of(name) not in self._made:
                        deep.remove(fd, name)
                    elif is_folder:
                        waiting.append(above.of(name))

    def _is_cleared(self, path: str) -> bool:
        while path not in self._opaque:
            if not path:
                return False
            path = path.rpartition("/")[0]
        return True

    def _remove(self, above: _Above, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            deep.remove(above.fd, name)

    # --- folders above members

    def _enter(self, parent: str, mtime: int) -> _Above:
        """The folder of a member. Missing folders are made, with the member's time."""
        with contextlib.suppress(FileNotFoundError):
            return self._opened(parent)
        done = ""
        for name in parent.split("/"):
            above = self._opened(done)
            done = f"{done}/{name}".lstrip("/")
            try:
                os.close(beneath.open_in_root(self._root, done, os.O_PATH | os.O_DIRECTORY))
            except FileNotFoundError:
                self._note_time(above)
                os.mkdir(name, 0o755, dir_fd=above.fd)
                os.chmod(name, 0o755, dir_fd=above.fd)
                self._add_made(above.of(name))
                self._times[above.of(name)] = mtime
        return self._opened(parent)

    def _opened(self, parent: str) -> _Above:
        """The folder as a process sees it whose root is the tree. It stays open for the members that follow."""
        if self._above is None or self._above[0] != parent:
            fd = beneath.open_in_root(self._root, parent, _FOLDER)
            self._forget_above()
            self._above = (parent, _Above(fd, ""))
            path = path_of(fd).removeprefix(self._root_path).lstrip("/")
            self._above = (parent, _Above(fd, path))
        return self._above[1]

    def _forget_above(self) -> None:
        if self._above is not None:
            os.close(self._above[1].fd)
        self._above = None

    def _add_made(self, path: str) -> None:
        while path not in self._made:
            self._made.add(path)
            path = path.rpartition("/")[0]

    def _note_time(self, above: _Above) -> None:
        """Keep the time of a folder that changes because of its content."""
        if above.path not in self._times:
            self._times[above.path] = os.fstat(above.fd).st_mtime_ns


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the member in BadLayout, which is raised also for what the kernel refuses to make."""
    try:
        yield
    except BadLayout as error:
        raise BadLayout(f"{os.fsencode(name)[:200].decode(errors='replace')}: {error}") from error
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise BadLayout(f"{os.fsencode(name)[:200].decode(errors='replace')}: {error.strerror}") from error


def _plain(name: str) -> str:
    """A member's path below the root. A leading `/` and `.` mean the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadLayout("its path has '..'")
    if len(os.fsencode(name)) > _MAX_PATH or "\0" in name:
        raise BadLayout("its path is impossible")
    return "/".join(parts)


def _entry(info: tarfile.TarInfo, path: str, left_out: Counter[str]) -> TreeEntry | None:
    """Facts of a member as the store has them. None for devices and hard links."""
    if info.type in _DEVICES or info.islnk():
        return None
    if info.type not in _TYPES:
        raise BadLayout(f"it has the unknown type {info.type!r}")
    if not (0 <= info.uid <= _MAX_ID and 0 <= info.gid <= _MAX_ID):
        raise BadLayout(f"it has an impossible owner: {info.uid}:{info.gid}")
    text = os.fsencode(info.linkname) if info.issym() else b""
    if info.issym() and (not 0 < len(text) <= _MAX_PATH or b"\0" in text):
        raise BadLayout("it is a link to an impossible path")
    kind = _TYPES[info.type]
    attributes = _attributes(info, kind, left_out)
    return TreeEntry(
        os.fsencode(path), kind, info.mode & 0o7777, info.uid, info.gid, _mtime(info), attributes, [], text=text
    )


def _attributes(info: tarfile.TarInfo, kind: int, left_out: Counter[str]) -> list[tuple[bytes, bytes]]:
    """The attributes that mean the same here as where the image was made. Others belong to that machine (SELinux,
    overlayfs), or are of a type that the kernel lets have none.
    """
    kept = []
    for key, value in info.pax_headers.items():
        if key.startswith("SCHILY.acl."):  # as text, with names of users
            left_out["acl"] += 1
        if not key.startswith(_XATTR):
            continue
        name = key.removeprefix(_XATTR)
        is_kept = (
            name.startswith(_KEPT) and not name.startswith("user.overlay.") and kind in (entries.FILE, entries.FOLDER)
        )
        if is_kept or (name == _CAPABILITY and kind == entries.FILE):
            kept.append((os.fsencode(name), os.fsencode(value)))
        else:
            left_out[name] += 1
    return sorted(kept)


def _mtime(info: tarfile.TarInfo) -> int:
    """In nanoseconds; the nearest that the store can have."""
    found = _TIME.fullmatch(info.pax_headers.get("mtime", ""))
    if found is None:
        mtime = info.mtime if isinstance(info.mtime, int) else 0
        return entries.storable_time(mtime * _NANO)
    mtime = int(found[2]) * _NANO + int((found[3] or "").ljust(9, "0")[:9])
    return entries.storable_time(-mtime if found[1] else mtime)


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, fd: int) -> None:
    """Write the content of a file, without its holes."""
    with refusing_tar():
        source = tar.extractfile(info)
    assert source is not None
    parts = cast(list[tuple[int, int]], info.sparse) if info.issparse() else [(0, info.size)]
    end = 0
    for place, size in parts:
        if not end <= place <= place + size <= info.size:
            raise BadLayout("its map of holes is impossible")
        end = place + size
        while place < end:
            with refusing_tar():
                source.seek(place)
                piece = source.read(min(PIECE, end - place))
            if not piece:
                raise BadLayout("it is not complete")
            files.write_all_at(fd, piece, place)
            place += len(piece)
    os.ftruncate(fd, info.size)
