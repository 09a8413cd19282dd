"""Rewriting removed folders in CRIU's images, without a CRIU. CRIU calls a removed file that is still open a ghost."""

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.linux.tasks.removed import RemovedFolder
from waypoint.model.errors import CannotCapture
from waypoint.processes.criu.ghosts import external_name, make_ghosts
from waypoint.processes.criu.messages import Field, Message, Value, decode, encode

FOLDER = RemovedFolder(90, 7, "/srv/build", stat.S_IFDIR | 0o2751, 12, 34, 5_000_000_000, 6_000_007_000)
FILES, REMAPS, GHOST = 0x56303138, 0x59133954, 0x52583605
REG = Message(
    {
        "id": Field(1, "uint32"),
        "flags": Field(2, "uint32"),
        "name": Field(6, "string"),
        "mnt_id": Field(7, "uint32"),
        "ext": Field(9, "bool"),
        "mode": Field(10, "uint32"),
        "later": Field(99, "string"),
    }
)
FILE = Message(
    {"type": Field(1, "uint32"), "id": Field(2, "uint32"), "reg": Field(3, REG), "pipe": Field(18, "string")}
)
REMAP = Message({"orig_id": Field(1, "uint32"), "remap_id": Field(2, "uint32"), "remap_type": Field(3, "uint32")})
GHOST_FILE = Message({"uid": Field(1, "uint32"), "gid": Field(2, "uint32"), "mode": Field(3, "uint32")})


@pytest.fixture
def images(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def image(magic: int, *messages: bytes) -> bytes:
    parts = [struct.pack("<I", len(message)) + message for message in messages]
    return struct.pack("<II", 0x54564319, magic) + b"".join(parts)


def parse(kind: Message, magic: int, content: bytes) -> list[dict[str, Value]]:
    assert content[:8] == struct.pack("<II", 0x54564319, magic)
    found, place = [], 8
    while place < len(content):
        (size,) = struct.unpack_from("<I", content, place)
        found.append(decode(kind, content[place + 4 : place + 4 + size]))
        place += 4 + size
    return found


def file(number: int, name: str, mode: int, **more: Value) -> bytes:
    reg: dict[str, Value] = {"id": number, "flags": 0o200000, "name": name, "mode": mode, "later": "kept", **more}
    return encode(FILE, {"type": 1, "id": number, "reg": reg})


def regs(folder: Path) -> list[Value]:
    return [entry.get("reg") for entry in parse(FILE, FILES, (folder / "files.img").read_bytes())]


def test_an_external_folder_becomes_one_ghost_for_all_its_descriptors(tmp_path: Path, images: int) -> None:
    pipe = encode(FILE, {"type": 2, "id": 9, "pipe": "as it is"})
    held = [file(number, external_name(FOLDER), FOLDER.mode, ext=1) for number in (3, 4)]
    (tmp_path / "files.img").write_bytes(image(FILES, held[0], pipe, held[1], file(5, "/etc", FOLDER.mode)))
    make_ghosts(images, [FOLDER])
    first, _, second, other = regs(tmp_path)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["name"] == "/srv/build"
    assert (first["mnt_id"], first["later"], "ext" in first) == (2 * 90, "kept", False)  # encoded as sint32
    assert {**first, "id": 4} == second
    assert isinstance(other, dict)
    assert other["name"] == "/etc"
    remaps = parse(REMAP, REMAPS, (tmp_path / "remap-fpath.img").read_bytes())
    (ghost,) = {remap["remap_id"] for remap in remaps}
    assert [(remap["orig_id"], remap["remap_type"]) for remap in remaps] == [(3, 1), (4, 1)]
    content = (tmp_path / f"ghost-file-{ghost:x}.img").read_bytes()
    assert parse(GHOST_FILE, GHOST, content) == [{"uid": 12, "gid": 34, "mode": FOLDER.mode}]
    assert b"as it is" in (tmp_path / "files.img").read_bytes()


def test_a_ghost_of_criu_keeps_its_image_and_gets_an_unused_name(tmp_path: Path, images: int) -> None:
    long = "x" * 255
    folders = [file(3, f"/srv/{long}", FOLDER.mode), file(4, f"/srv/{long}", FOLDER.mode)]
    remaps = [encode(REMAP, {"orig_id": number, "remap_id": number - 2, "remap_type": 1}) for number in (3, 4, 5)]
    (tmp_path / "files.img").write_bytes(image(FILES, *folders, file(5, "/srv/file", stat.S_IFREG)))
    (tmp_path / "remap-fpath.img").write_bytes(image(REMAPS, *remaps))
    names: set[Value] = set()
    for again in range(1, 4):
        make_ghosts(images, [])
        *found, plain = [reg["name"] for reg in regs(tmp_path) if isinstance(reg, dict)]
        assert plain == "/srv/file"
        names.update(found)
        assert len(names) == 2 * again
        assert all(len(os.path.basename(str(name))) < 256 for name in found)
        assert all(str(name).count(".waypoint-") == 1 for name in found)
    assert (tmp_path / "remap-fpath.img").read_bytes() == image(REMAPS, *remaps)


def test_images_without_removed_folders_are_not_changed(tmp_path: Path, images: int) -> None:
    (tmp_path / "files.img").write_bytes(b"not even looked at")
    make_ghosts(images, [])
    assert os.listdir(tmp_path) == ["files.img"]


def test_a_file_with_the_mount_and_inode_of_a_removed_folder_is_refused(tmp_path: Path, images: int) -> None:
    (tmp_path / "files.img").write_bytes(image(FILES, file(3, external_name(FOLDER), stat.S_IFREG, ext=1)))
    with pytest.raises(CannotCapture, match="same number") as refused:
        make_ghosts(images, [FOLDER])
    assert "leave or close " in refused.value.next_step
