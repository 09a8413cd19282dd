"""A store of hostile origin: every digest in it is right, and what it tells is what no capture was. Whatever is asked
of the program that works on stores, it answers in words, writes nothing outside of what it was told, and takes little
memory.
"""

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.store.content.stores import new_store
from tests.store.exports.forging import capture, entry, image_of, nothing_written
from waypoint.capture.storing import store_program
from waypoint.capture.storing.orders import Recall, StoreOrder, Verify
from waypoint.linux.storage.deep import remove_path
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.entries import Piece, Root

MOST_KIB = 400 << 10
LINK, FOLDER = entries.LINK, entries.FOLDER
Put = Callable[[Kind, object], bytes]
Hostile = Callable[[Put], bytes]
"""Puts objects, and returns the digest of a ROOT."""


def root(put: Put, *inside: entries.TreeEntry, links: list[Piece] | None = None) -> bytes:
    rows: list[Piece] = [(put(Kind.TREE, list(inside)), len(inside))] if inside else []
    return put(Kind.ROOT, Root(entry(b"", FOLDER, rows=rows), links or []))


def below(put: Put, name: bytes, *inside: entries.TreeEntry) -> entries.TreeEntry:
    return entry(name, FOLDER, rows=[(put(Kind.TREE, list(inside)), len(inside))])


def linked(put: Put, *groups: list[bytes], says: int = 0) -> bytes:
    """A folder with a link out of it, a file, and names of files that are one file."""
    content = msgspec.msgpack.encode(groups)
    rows: list[Piece] = [(put(Kind.DATA, content), says or len(content))]
    return root(put, entry(b"file"), entry(b"out", LINK, text=b"../../out"), links=rows)


def of_one_file(put: Put, *rows: Piece, lists: bool = False) -> bytes:
    return root(put, below(put, b"m0", entry(b"f", rows=list(rows), lists=lists)))


def of_many(put: Put) -> bytes:
    return put(Kind.LIST, [(None, 1)] * (5 << 20))


def deep_bomb(put: Put) -> bytes:
    """As many names as no disk has, in a few objects."""
    row: Piece = (put(Kind.TREE, [entry(b"file")]), 1)
    for _ in range(30):
        row = (put(Kind.TREE, [entry(b"d%d" % number, FOLDER, rows=[row]) for number in range(9)]), 9)
    return root(put, entry(b"m0", FOLDER, rows=[row, (b"\1" * 32, 1)]))


TREES: dict[str, tuple[Hostile, str]] = {
    **{
        f"name {name!r}": (lambda put, name=name: root(put, entry(name)), "a name that cannot be")  # type: ignore[misc]
        for name in (b"..", b".", b"", b"a/b", b"/etc/passwd", b"a\0b", b"x" * 256)
    },
    "names in another order": (lambda put: root(put, entry(b"b"), entry(b"a")), "not in its place"),
    "a name twice": (lambda put: root(put, entry(b"a"), entry(b"a")), "not in its place"),
    "what is a tree for a root": (lambda put: put(Kind.TREE, []), "it is a tree, not a root"),
    "what is not there": (lambda put: root(put, entry(b"m0", FOLDER, rows=[(b"\1" * 32, 1)])), "not there"),
    "as many names as no disk has": (deep_bomb, "not there"),
    "a size beyond numbers": (lambda put: of_one_file(put, (None, 1 << 62), (None, 1 << 62)), "cannot be"),
    "a size beyond files": (lambda put: of_one_file(put, (None, (1 << 63) - 1)), "File too large"),
    "more parts": (lambda put: of_one_file(put, *[(None, 1)] * 129), "more parts than"),
    "a part of another length": (lambda put: of_one_file(put, (put(Kind.DATA, b"abc"), 1)), "another length"),
    "a list of another length": (
        lambda put: of_one_file(put, (put(Kind.LIST, [(None, 9)]), 1), lists=True),
        "another length",
    ),
    "a list without end": (lambda put: of_one_file(put, (of_many(put), 5 << 20), lists=True), "bytes"),
    "a list for a file": (lambda put: of_one_file(put, (put(Kind.LIST, []), 1)), "it is a list, not a data"),
    "nobody's file": (lambda put: root(put, entry(b"m0", FOLDER, uid=(1 << 32) - 1)), "belongs to nobody"),
    "a link that is a disk": (
        lambda put: root(put, below(put, b"m0", entry(b"sda", entries.BLOCK, text=bytes([0, 0, 0, 8, 0, 0, 0, 0])))),
        "it is a device",
    ),
    "links through a link": (lambda put: linked(put, [b"file", b"out/file"]), "has not the other names"),
    "links to above": (lambda put: linked(put, [b"file", b"../out/file"]), "a name that cannot be"),
    "links from outside": (lambda put: linked(put, [b"out/secret", b"stolen"]), "has not the other names"),
    "links that are more than they say": (
        lambda put: linked(put, [b"a" * 255, b"b"] * (1 << 15), says=1),
        "another length",
    ),
    "its mount is a link": (lambda put: root(put, entry(b"m0", LINK, text=b"../../out")), "m0 is no folder"),
    "its layer is a link": (
        lambda put: root(put, below(put, b"m0", entry(b"upper", LINK, text=b"../../../out"))),
        "m0/upper is no folder",
    ),
    "its base has a link": (
        lambda put: root(put, below(put, b"m0", below(put, b"base", entry(b"lib", LINK, text=b"/usr/lib")))),
        "lib is neither a file nor a folder",
    ),
}
PARTS = {"rest": b"attached", "processes": b"userns-1.img"}
"""In these a link is followed by whoever looks for such a name."""


class Program:
    """The program that works on stores, as the daemon starts it."""

    def __init__(self, store: Path, gate: int) -> None:
        command = [sys.executable, "-I", "-S", store_program.__file__, "0", str(gate), ""]
        self._store = str(store)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[gate], start_new_session=True
        )

    def close(self) -> int:
        """Returns the most memory that it has taken, in KiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        self._process.communicate()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])

    def verified(self, image: str) -> dict[str, Any]:
        order = Verify(store=self._store, images=[image], read_data=False, only=True)
        return self._told(order)["result"]  # type: ignore[no-any-return]

    def recalled(self, image: str, place: Path) -> dict[str, Any]:
        (place / "tree").mkdir()
        order = Recall(store=self._store, image=image, tree=str(place / "tree"), hot=str(place / "hot"))
        return self._told(order)

    def _told(self, order: StoreOrder) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "result" in answer or "error" in answer:
                return answer
        raise AssertionError(f"the program has ended: {process.wait()}")


class Evil:
    """`program` works on `store`. Near it lies `out`, a folder with a secret, which nobody is to touch."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self._store = folder, store
        ours, theirs = os.pipe()  # a gate that is open: its other end is closed
        os.close(theirs)
        self.program = Program(folder / "store", ours)
        os.close(ours)
        (folder / "out").mkdir()
        (folder / "out/secret").write_text("secret")

    def image(self, hostile: Hostile, part: str = "files") -> str:
        with self._store.writing("test") as writer:
            digest = hostile(lambda kind, what: writer.put(kind, _encoded(what)))
            whole = root(lambda kind, what: writer.put(kind, _encoded(what)))
            writer.commit()
            image = image_of(digest if part == "files" else whole)
            if part != "files":
                manifest = json.loads(image.manifest)
                manifest["parts"][part] = {"root": digest.hex()}
                image = image._replace(manifest=json.dumps(manifest).encode())
            return self._store.images.add(image)

    def sound(self) -> ImageFile:
        """An image of nothing, whose content is in the store."""
        with self._store.writing("test") as writer:
            digest = root(lambda kind, what: writer.put(kind, _encoded(what)))
            writer.commit()
            return image_of(digest)

    def add(self, manifest: bytes) -> str:
        with self._store.writing("test"):
            return self._store.images.add(ImageFile(manifest, b"{}"))

    def refused(self, image: str, said: str) -> None:
        """To bring it back is refused in these words, and has left nothing elsewhere."""
        place = self.folder / "place"
        place.mkdir()
        with nothing_written(self.folder / "out"):
            answer = self.program.recalled(image, place)
        assert said in answer["error"]["said"], answer
        assert answer["error"]["next"]
        assert sorted(os.listdir(self.folder)) == ["out", "place", "store"]
        remove_path(place)


def _encoded(what: object) -> bytes:
    return what if isinstance(what, bytes) else msgspec.msgpack.encode(what)


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evil]:
    folder = tmp_path_factory.mktemp("evil")
    with contextlib.closing(new_store(folder / "store")) as store:
        made = Evil(folder, store)
        yield made
        assert made.program.close() < MOST_KIB


@pytest.mark.privileged
@pytest.mark.parametrize("case", TREES)
def test_a_folder_that_no_capture_has_is_refused(evil: Evil, case: str) -> None:
    hostile, said = TREES[case]
    image = evil.image(hostile)
    evil.refused(image, said)
    assert evil.program.verified(image)["images"] == 1


@pytest.mark.privileged
@pytest.mark.parametrize("part", PARTS)
def test_no_link_is_followed_of_what_the_daemon_reads_itself(evil: Evil, part: str) -> None:
    link = entry(PARTS[part], LINK, text=os.fsencode(evil.folder / "out"))
    image = evil.image(lambda put: root(put, link), part)
    evil.refused(image, f"{PARTS[part].decode()} is neither a file nor a folder")


def _manifests() -> dict[str, tuple[bytes, str]]:
    sound = json.loads(image_of(bytes(32), capture()).manifest)
    whole = json.dumps(sound).encode()

    def changed(**changes: object) -> bytes:
        return json.dumps(sound | changes).encode()

    return {
        "too deep": (b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "maximum recursion depth"),
        "cut": (whole[:-1], "truncated"),
        "no object": (b"[" + whole + b"]", "got `array`"),
        "no text": (whole.replace(b"/bin/bash", b"\xff\xfe"), "can't decode"),
        "half a character": (changed(folder="\ud800"), "JSON is malformed"),
        "of another format": (changed(format=9), "it is of format 9"),
        "of no format": (changed(format="1"), "got `str`"),
        "a digest that is none": (changed(parts={"files": {"root": "x" * 64}}), "matching regex"),
        "no digest": (changed(parts={"files": {"root": None}}), "got `null`"),
        "no part": (changed(parts={"files": []}), "got `array`"),
        "what is not there": (changed(parts={"files": {"root": "1" * 64}}), "not there"),
        "a path that is none": (changed(inodes=[["?", 1]]), "Invalid base64"),
        "a tier that is none": (changed(tier="best"), "Invalid enum value"),
        "no layers": (changed(layers={}), "missing required field"),
    }


MANIFESTS = _manifests()


@pytest.mark.privileged
@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_tells_what_cannot_be(evil: Evil, case: str) -> None:
    """Neither does it hide what is wrong with others."""
    manifest, said = MANIFESTS[case]
    image = evil.add(manifest)
    evil.refused(image, said)
    (problem,) = evil.program.verified(image)["lacking"].values()
    assert said in problem


@pytest.mark.privileged
def test_a_manifest_whose_names_lead_elsewhere(evil: Evil) -> None:
    """Of what is attached, it is refused; the inode numbers of files that are none of the image's mean nothing."""
    sound = json.loads(evil.sound().manifest)
    whole = sound["parts"]["files"]
    for kind, said in {"../../../out": "starts with a letter", "": "may not be empty", "a/b": "a slash in it"}.items():
        evil.refused(evil.add(json.dumps(sound | {"parts": {f"attached/{kind}": whole}}).encode()), said)
    paths = [b"../../out/secret", b"/etc/passwd", b"", b".", b"..", b"a\0b", b"m0/" * 2000, b"\xff"]
    numbers = [0, 1, -1, (1 << 63) - 1, (1 << 64) - 1]
    inodes = [[base64.b64encode(path).decode(), number] for path in paths for number in numbers]
    parts = {"files": whole, "processes": whole}
    place = evil.folder / "place"
    place.mkdir()
    with nothing_written(evil.folder / "out"):
        image = evil.add(json.dumps(sound | {"inodes": inodes, "parts": parts}).encode())
        assert evil.program.recalled(image, place) == {"result": {}}
    assert os.listdir(place / "tree") == []
    remove_path(place)
