"""Ghosts that have another name in the captured files are opened by that name, without a CRIU."""

import os
import struct
from pathlib import Path

import pytest

from waypoint.linux.storage.descriptors import open_folder
from waypoint.processes.criu.image_files import read_messages
from waypoint.processes.criu.linked_files import Place, make_names, needs_names, use_names
from waypoint.processes.criu.messages import Field, Message, decode, encode

FILES, REMAPS, GHOST = 0x56303138, 0x59133954, 0x52583605
TIME = Message({"tv_sec": Field(1, "uint64"), "tv_usec": Field(2, "uint64")})
GHOST_FILE = Message({"mode": Field(3, "uint32"), "ino": Field(5, "uint64"), "mtim": Field(8, TIME)})
REMAP = Message({"orig_id": Field(1, "uint32"), "remap_id": Field(2, "uint32"), "remap_type": Field(3, "uint32")})
REG = Message({"id": Field(1, "uint32"), "name": Field(6, "string")})
FILE = Message({"type": Field(1, "uint32"), "id": Field(2, "uint32"), "reg": Field(3, REG)})
CONTENT = b"content"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Images with two open files that have the ghost 1."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "files.img").write_bytes(image(FILES))
    remaps = [encode(REMAP, {"orig_id": file, "remap_id": 1, "remap_type": 1}) for file in (5, 6)]
    (folder / "remap-fpath.img").write_bytes(image(REMAPS, *remaps))
    return folder


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """The other name of the file in the captured files."""
    file = tmp_path / "tree/m0/upper/srv/b"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    return file


def image(magic: int, *messages: bytes) -> bytes:
    return struct.pack("<II", 0x54564319, magic) + b"".join(struct.pack("<I", len(one)) + one for one in messages)


def write_ghost(images: Path, named: Path, content: bytes) -> None:
    found = named.stat()
    seconds, rest = divmod(found.st_mtime_ns // 1000, 10**6)
    values = {"mode": found.st_mode, "ino": 7, "mtim": {"tv_sec": seconds, "tv_usec": rest}}
    (images / "ghost-file-1.img").write_bytes(image(GHOST, encode(GHOST_FILE, values)) + content)  # type: ignore[arg-type]


def places(inode: int) -> list[Place]:
    return [Place("m0/upper/srv/b", "/srv/b")] if inode == 7 else []


def test_the_other_name_replaces_the_ghost(images: Path, named: Path, tmp_path: Path) -> None:
    write_ghost(images, named, CONTENT)
    with open_folder(images) as images_fd, open_folder(tmp_path / "tree") as tree:
        assert not needs_names(images_fd)
        use_names(images_fd, tree, places)
        assert needs_names(images_fd)
        [file] = [decode(FILE, entry) for entry in read_messages(images_fd, "files.img", FILES)]
        remaps = [decode(REMAP, entry) for entry in read_messages(images_fd, "remap-fpath.img", REMAPS)]
        assert not named.with_name(f"link_remap.{file['id']}").exists()
        for _again in range(2):
            make_names(images_fd, tree)
    assert file == {"type": 1, "id": file["id"], "reg": {"id": file["id"], "name": f"/srv/link_remap.{file['id']}"}}
    assert remaps == [{"orig_id": number, "remap_id": file["id"], "remap_type": 0} for number in (5, 6)]
    assert named.with_name(f"link_remap.{file['id']}").samefile(named)
    assert not (images / "ghost-file-1.img").exists()


@pytest.mark.parametrize("change", ["size", "time", "mode", "inode"])
def test_another_file_with_the_same_number_is_not_taken(images: Path, named: Path, tmp_path: Path, change: str) -> None:
    write_ghost(images, named, CONTENT + b"more" if change == "size" else CONTENT)
    if change == "time":
        os.utime(named, (1, 1))
    if change == "mode":
        named.chmod(0o711)
    before = {path.name: path.read_bytes() for path in images.iterdir()}
    with open_folder(images) as images_fd, open_folder(tmp_path / "tree") as tree:
        use_names(images_fd, tree, lambda inode: [] if change == "inode" else places(inode))
        make_names(images_fd, tree)
    assert {path.name: path.read_bytes() for path in images.iterdir()} == before
    assert os.listdir(named.parent) == ["b"]
