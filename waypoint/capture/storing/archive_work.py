"""Exporting and importing archives, in the store's own process."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

import msgspec

from waypoint.capture.storing.arriving import arrived
from waypoint.capture.storing.orders import (
    ArchiveFile,
    Export,
    Exported,
    Import,
    Imported,
    Inspect,
    Inspected,
)
from waypoint.linux.storage import access, files
from waypoint.model.errors import NotAllowed, StateConflict, StoreDamaged, UsageProblem
from waypoint.model.records import User
from waypoint.store import trees
from waypoint.store.archives import archive, signatures
from waypoint.store.archives.archive import Archive, Packing, refused
from waypoint.store.archives.layout import LAYER_TYPE, Descriptor, LayoutWriter
from waypoint.store.archives.tar_layers import LayerWriter
from waypoint.store.manifest import Manifest
from waypoint.store.store import Reader, Store
from waypoint.upper.layout import target_of

OnProgress = Callable[[int], None]
_MAX_KEY_BYTES = 1 << 16


def carry_out(store: Store, order: Export | Inspect | Import, on_progress: OnProgress) -> object:
    tried = "export to" if isinstance(order, Export) else "import"
    try:
        match order:
            case Export():
                return _export(store, order, on_progress)
            case Inspect():
                return _inspect(order, on_progress)
            case Import():
                return _import(store, order, on_progress)
    except PermissionError as error:
        raise NotAllowed(tried, order.file.path, _words(error), "let root run the command") from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageProblem(tried, order.file.path, _words(error), "name another path") from error


def _words(error: OSError) -> str:
    return f"{error.strerror}: {os.fsdecode(error.filename or '')}"


# --- export


def _export(store: Store, order: Export, on_progress: OnProgress) -> Exported:
    key = _read_key(order.file)
    images = {image: store.read_image(image) for image in order.images}
    tip = images[order.images[-1]]
    with _new_file(order.file) as fd, store.reading() as reader:
        layout = LayoutWriter(fd)
        layers = list(_oci_layers(reader, layout, tip)) if order.oci_layers else []
        packing = Packing(reader, layout, order.scratch)
        seen: set[bytes] = set()
        for manifest in images.values():
            for _, digest in trees.reachable(reader, manifest.roots(), seen):
                packing.add(digest)
                on_progress(layout.size)
        packing.finish()
        content = archive.Content(
            name=order.name,
            images=[store.read_manifest(image) for image in images],
            records=order.records.encode(),
            layers=layers,
            packs=packing.packs,
            created=order.created,
            architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        )
        sign = (lambda payload: signatures.sign(payload, order.file.key, key)) if key else None
        subject = archive.finish(layout, content, sign)
        os.fsync(fd)
        return Exported(digest=subject.digest, size_bytes=layout.size)


def _oci_layers(reader: Reader, layout: LayoutWriter, tip: Manifest) -> Iterator[tuple[Descriptor, str]]:
    """The files of the session, and CRIU's images, for other tools."""
    for kind, part in (("files", "tree"), ("processes", "images")):
        root = tip.layers[kind].roots.get(part) if kind in tip.layers else None
        if root is None:
            continue
        digest = ""

        def write_layer(write: Callable[[bytes], None], kind: str = kind, root: str = root) -> None:
            nonlocal digest
            layer = LayerWriter(reader, write)
            found = trees.read_root(reader, bytes.fromhex(root))
            links = trees.read_links(reader, found)
            if kind == "processes":
                layer.add(found.entry, links, b"", b"checkpoint/")
            for mount in trees.read_entries(reader, found.entry) if kind == "files" else ():
                target = os.fsencode(target_of(os.fsdecode(mount.name))).strip(b"/")
                for upper in trees.read_entries(reader, mount):
                    if upper.name != b"upper":
                        continue
                    layer.add(upper, links, mount.name + b"/" + upper.name + b"/", target + b"/" if target else b"")
            digest = layer.close()

        yield layout.stream(LAYER_TYPE, write_layer, {"waypoint.layer": kind}), digest


@contextlib.contextmanager
def _new_file(file: ArchiveFile) -> Iterator[int]:
    """Make the file with the rights of its user. It gets its name at the end of the block; if the block raises, it
    does not exist. Where the file system has no files without names, a killed process leaves an incomplete file, which
    no import accepts.
    """
    path, user = file.path, file.user
    with _as(user):
        if os.path.lexists(path):
            raise StateConflict("write", path, "it exists", "name a path that does not exist", code="name-taken")
        fd = files.open_nameless(os.path.dirname(path), 0o600)
        has_name = fd is None
        if fd is None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield fd
        if not has_name:
            with _as(user):
                files.give_name(fd, path)
    except BaseException:
        if has_name:
            with _as(user), contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        os.close(fd)


# --- import


def _inspect(order: Inspect, on_progress: OnProgress) -> Inspected:
    key = _read_key(order.file)
    with _opened(order.file.path, order.file.user) as fd, _as_refusal():
        found = Archive(fd, order.max_bytes)
        if key:
            envelope, payload = found.envelope(), msgspec.json.encode(found.subject)
            if envelope is None or not signatures.is_signed(envelope, payload, order.file.key, key):
                said = "it has no signature" if envelope is None else f"it is not signed with {order.file.key}"
                raise refused(said, "signature-refused")
        found.check_objects(on_progress)
        captures = arrived(found, order.max_bytes, may_be_privileged=order.may_be_privileged)
        return Inspected(digest=found.subject.digest, captures=captures)


def _import(store: Store, order: Import, on_progress: OnProgress) -> Imported:
    with _opened(order.file.path, order.file.user) as fd, _as_refusal():
        found = Archive(fd, order.max_bytes)
        if found.subject.digest != order.digest:
            raise refused("it was replaced by another file during the import")
        with store.writing() as writer:
            writer.on_progress = on_progress
            found.put_into(writer)
            return Imported(new_bytes=writer.new_bytes)


@contextlib.contextmanager
def _as_refusal() -> Iterator[None]:
    """Damage of the archive is not damage of the store."""
    try:
        yield
    except StoreDamaged as error:
        code = error.code if error.code.endswith("-refused") else "archive-refused"
        on = error.on.removesuffix(" of the store")
        raise refused(error.said if error.tried == "import" else f"{on}: {error.said}", code) from error


@contextlib.contextmanager
def _opened(path: str, user: User) -> Iterator[int]:
    with _as(user):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageProblem("read", path, "it is no regular file", "name a file")
        yield fd
    finally:
        os.close(fd)


def _read_key(file: ArchiveFile) -> bytes:
    """The content of the file with the key; empty if there is none."""
    if not file.key:
        return b""
    with _opened(file.key, file.user) as fd:
        return os.pread(fd, _MAX_KEY_BYTES, 0)


def _as(user: User) -> contextlib.AbstractContextManager[None]:
    return access.as_user(user.uid, user.gid, user.groups)
