"""Power losses and errors of the disk at each system call with which a store is written.

The calls are recorded once with strace, and each prefix of them is replayed: as it was (the process was killed),
without the data that no fsync(2) had written out, and with half of the last write (power losses).
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.store.stores import add_image, put_folder, take_out
from tests.upper.pictures import picture
from waypoint.store.store import Store, make_store
from waypoint.store.upkeep import gc, verify

pytestmark = [pytest.mark.soak(part="faults"), pytest.mark.requires("strace")]

WORK = """
import sys
from pathlib import Path
from tests.store.stores import add_image, put_folder
from waypoint.store.store import Store
from waypoint.store.upkeep import gc
store = Store(sys.argv[1])
images = [add_image(store, put_folder(store, Path(folder))) for folder in sys.argv[2:]]
gc(store, images[1:])
"""
_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += \d+(?:<.*>)?$")
_FILE = re.compile(r"\d+<((?:\\x[0-9a-f]{2})+)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Call(NamedTuple):
    """A system call that has changed a file. `path`, `to`: relative to the store. `place`: -1: the end of the file."""

    name: str
    path: str
    content: bytes = b""
    place: int = -1
    to: str = ""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store `start`, which has one image, and the folders `0`, `1` and `2` to be stored."""
    top = tmp_path_factory.mktemp("recorded")
    store = make_store(str(top / "start"))
    for number in range(3):
        (top / str(number)).mkdir()
        (top / str(number) / "file").write_bytes(os.urandom(20_000))
        (top / str(number) / "same").write_text("in all of them" * 500)
    add_image(store, put_folder(store, top / "0"))
    return top


def work(start: Path, store: Path, *strace: str) -> int:
    """Store the folders `1` and `2`, and remove the first image. Returns the exit status."""
    words = [sys.executable, "-c", WORK, str(store), str(start / "1"), str(start / "2")]
    done = subprocess.run(["strace", "-f", "-o", f"{start}/log", *strace, *words], capture_output=True, check=False)
    assert done.returncode == 0 or b"waypoint.model.errors" in done.stderr, done.stderr.decode()
    return done.returncode


def recorded(start: Path) -> list[Call]:
    calls = "write,pwrite64,ftruncate,fsync,fdatasync,rename,unlink,openat"
    shutil.copytree(start / "start", start / "store")
    work(start, start / "store", "-y", "-xx", "-s", "50000000", "-e", "status=successful", "-e", f"trace={calls}")
    return list(_parsed((start / "log").read_text(), str(start / "store")))


def _parsed(log: str, store: str) -> Iterator[Call]:
    """The calls that have changed files of the store."""
    for line in log.splitlines():
        match = _CALL.match(line)
        if match is not None and not (match[1] == "openat" and "O_CREAT" not in line):
            call = _call(match[1], match[2])
            if call.path.startswith(f"{store}/") and not call.path.endswith("-shm"):  # SQLite makes this file again
                yield call._replace(path=call.path.removeprefix(f"{store}/"), to=call.to.removeprefix(f"{store}/"))


def _call(name: str, words: str) -> Call:
    texts = [_unquoted(text) for text in _TEXT.findall(words)]
    file, last = _FILE.search(words), words.rpartition(", ")[2]
    path = os.fsdecode(_unquoted(file[1])) if file is not None else ""
    match name:
        case "openat" | "unlink":
            return Call("create" if name == "openat" else name, os.fsdecode(texts[0]))
        case "rename":
            return Call(name, os.fsdecode(texts[0]), to=os.fsdecode(texts[1]))
        case "write" | "pwrite64":
            return Call("write", path, texts[0], int(last) if name == "pwrite64" else -1)
        case "ftruncate":
            return Call(name, path, place=int(last))
        case _:
            return Call("sync", path)


def _unquoted(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def replay(calls: list[Call], folder: Path, *, is_synced: bool, is_torn: bool) -> None:
    """`is_synced`: all data is on disk; else only data that was written out. `is_torn`: half of the last write is."""
    for number, call in enumerate(calls):
        path = folder / call.path
        match call.name:
            case "create":
                path.touch()
            case "write":
                with path.open("r+b") as file:
                    file.seek(call.place if call.place >= 0 else 0, 0 if call.place >= 0 else 2)
                    half = is_torn and number == len(calls) - 1
                    content = call.content[: len(call.content) // 2] if half else call.content
                    file.write(content if is_synced or _is_written_out(calls, number) else b"")
            case "ftruncate":
                os.truncate(path, call.place)
            case "rename":
                path.rename(folder / call.to)
            case "unlink":
                path.unlink()


def _is_written_out(calls: list[Call], number: int) -> bool:
    path = calls[number].path
    for call in calls[number:]:
        if call.path == path and call.name == "sync":
            return True
        if call.path == path and call.name == "rename":
            path = call.to
    return False


def check(start: Path, folder: Path) -> None:
    """All images of the store are whole, and the work can be done again."""
    store = Store(str(folder))
    assert [one for one in verify(store, read_data=True) if one.images] == []
    assert store.image_ids() != []
    images = [add_image(store, put_folder(store, start / str(number))) for number in (1, 2)]
    gc(store, images)
    assert verify(store, read_data=True) == []
    root = put_folder(store, start / "2")
    copy = take_out(store, root, folder.parent / "copy")
    assert picture(copy) == picture(start / "2")
    shutil.rmtree(copy)


def test_each_prefix_of_the_writes_is_a_store_with_whole_images(start: Path, tmp_path: Path) -> None:
    calls = recorded(start)
    assert {call.name for call in calls} >= {"create", "write", "sync", "rename", "unlink"}
    assert sum(call.path.startswith("packs/") or call.to.startswith("packs/") for call in calls) >= 3
    for end in range(len(calls) + 1):
        for is_synced, is_torn in ((True, False), (True, True), (False, False)):
            shutil.copytree(start / "start", tmp_path / "store")
            replay(calls[:end], tmp_path / "store", is_synced=is_synced, is_torn=is_torn)
            check(start, tmp_path / "store")
            shutil.rmtree(tmp_path / "store")


@pytest.mark.parametrize(
    "call", ["pread64", "write", "pwrite64", "fsync", "fdatasync", "rename", "unlink", "ftruncate"]
)
def test_an_error_of_the_disk_at_any_call_leaves_whole_images(start: Path, tmp_path: Path, call: str) -> None:
    for number in range(1, 200):
        shutil.copytree(start / "start", tmp_path / "store")
        words = ["-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={number}"]
        if call == "pread64":  # which is also how the libraries of Python are read
            words += [f"-P{path}" for path in (tmp_path / "store").rglob("*") if path.is_file()]
        status = work(start, tmp_path / "store", *words)
        check(start, tmp_path / "store")
        shutil.rmtree(tmp_path / "store")
        if status == 0 and "INJECTED" not in (start / "log").read_text():
            break
    assert number > 1
