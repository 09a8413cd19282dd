"""Stores with content for tests, and random folders for Hypothesis."""

import os
import random
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from waypoint.linux.storage import filesystem
from waypoint.linux.storage.descriptors import open_folder
from waypoint.store import manifest
from waypoint.store.extract import extract
from waypoint.store.manifest import ImageLayer
from waypoint.store.objects import Kind
from waypoint.store.scan import ScanOptions, store_folder
from waypoint.store.store import Store

HOLE = 64 << 10
_NAMES = st.binary(min_size=1, max_size=12).filter(lambda n: not {*n} & {0, 47} and n not in (b".", b".."))
_IDS = st.sampled_from([0, 1, 1000, 65534, (1 << 32) - 2])
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["user.a", "user.b\udcff", "trusted.overlay.opaque", "trusted.overlay.redirect", "security.x"]),
    st.binary(max_size=40),
    max_size=2,
)


def examples(number: int) -> settings:
    return settings(max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class Facts(NamedTuple):
    mode: int
    uid: int
    gid: int
    mtime: int
    attributes: dict[str, bytes]


class AnyFile(NamedTuple):
    """`kind`: `file`, whose `content` are pieces, each after a number of holes; `again`: another name of a file; ..."""

    kind: str
    facts: Facts
    content: list[tuple[int, bytes]]
    text: bytes


class AnyFolder(NamedTuple):
    facts: Facts
    inside: "dict[bytes, AnyFile | AnyFolder]"


_FACTS = st.builds(Facts, st.integers(0, 0o7777), _IDS, _IDS, st.integers(0, (1 << 33) * 10**9), _ATTRIBUTES)
_FILES = st.builds(
    AnyFile,
    st.sampled_from(["file"] * 4 + ["again", "again", "link", "fifo", "socket", "whiteout"]),
    _FACTS,
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=300)), max_size=3),
    st.binary(min_size=1, max_size=30).filter(lambda text: b"\0" not in text),
)


def _folders(below: "st.SearchStrategy[AnyFile | AnyFolder]") -> st.SearchStrategy[AnyFolder]:
    return st.builds(AnyFolder, _FACTS, st.dictionaries(_NAMES, below, max_size=5))


TREES: st.SearchStrategy[AnyFolder] = _folders(st.recursive(_FILES, _folders, max_leaves=25))


def make_tree(path: bytes, tree: AnyFolder, made: list[bytes] | None = None) -> None:
    files = [] if made is None else made
    os.mkdir(path)
    for name, one in tree.inside.items():
        below = path + b"/" + name
        if isinstance(one, AnyFolder):
            make_tree(below, one, files)
        elif one.kind == "again" and files:
            os.link(files[len(one.text) % len(files)], below)
        else:
            _make_file(below, one)
            if one.kind in ("file", "again"):
                files.append(below)
    _dress(path, tree.facts, has_attributes=True)


def _make_file(path: bytes, one: AnyFile) -> None:
    match one.kind:
        case "link":
            os.symlink(one.text, path)
            os.chown(path, one.facts.uid, one.facts.gid, follow_symlinks=False)
            os.utime(path, ns=(0, one.facts.mtime), follow_symlinks=False)
            return
        case "fifo":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, 0o140700)
        case "whiteout":
            filesystem.make_whiteout(os.fsdecode(path))
        case _:
            with open(path, "wb") as file:
                for holes, piece in one.content:
                    file.seek(holes * HOLE, os.SEEK_CUR)
                    file.write(piece)
    _dress(path, one.facts, has_attributes=one.kind in ("file", "again"))


def _dress(path: bytes, facts: Facts, *, has_attributes: bool) -> None:
    os.chown(path, facts.uid, facts.gid)
    os.chmod(path, facts.mode)
    for name, value in facts.attributes.items() if has_attributes else ():
        os.setxattr(path, name, value)
    os.utime(path, ns=(0, facts.mtime))


def put_folder(store: Store, folder: Path, options: ScanOptions | None = None) -> bytes:
    with store.writing() as writer, open_folder(folder) as fd:
        root = store_folder(writer, fd, options or ScanOptions())
        writer.commit()
        return root


def take_out(store: Store, root: bytes, folder: Path) -> Path:
    folder.mkdir()
    with store.reading() as reader, open_folder(folder) as fd:
        extract(reader, root, fd)
    return folder


def add_image(store: Store, *roots: bytes) -> str:
    """Add an image with the layer `files` of these folders."""
    layer = ImageLayer(roots={f"m{number}": root.hex() for number, root in enumerate(roots)})
    with store.writing() as writer:
        return writer.add_image(manifest.new([], {"files": layer}, {}, {}))


def contents(seed: int, count: int, length: int) -> list[bytes]:
    """Different contents, half of which can be compressed."""
    chance = random.Random(seed)
    return [chance.randbytes(length) if one % 2 else chance.randbytes(8) * (length // 8) for one in range(count)]


def put_all(store: Store, *found: bytes) -> list[bytes]:
    with store.writing() as writer:
        digests = [writer.put(Kind.DATA, content) for content in found]
        writer.commit()
        return digests


def get_all(store: Store, digests: list[bytes]) -> list[bytes]:
    with store.reading() as reader:
        return [reader.get(Kind.DATA, digest) for digest in digests]
