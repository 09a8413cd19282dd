"""Images on their way from memory to the hot area, step by step; tests/acceptance/test_in_memory.py has the whole."""

import errno
import os
import subprocess
from pathlib import Path
from typing import cast

import pytest

from waypoint.capture.in_memory.hot_memory import MOST_EACH, HotMemory
from waypoint.capture.in_memory.settling import Settling
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.layer import Area
from waypoint.capture.measuring import Measures
from waypoint.capture.torn import Torn
from waypoint.linux import memory_limits
from waypoint.model.records import IdMap
from waypoint.upper.contract import Pool

HOST = IdMap()


@pytest.fixture
def settling(tmp_path: Path) -> Settling:
    memory = HotMemory("/nowhere")
    memory.folder = str(tmp_path / "memory")
    memory.why_not, memory.most_bytes = "", 64 << 20
    for folder in ("memory", "hot"):
        (tmp_path / folder).mkdir()
    return Settling(tmp_path / "hot", memory)


def born(settling: Settling, ident: str, content: str = "pages") -> Path:
    """The folder of the images of a new capture."""
    folder = settling.memory.make(ident, 1000, HOST)
    assert folder is not None
    (images := Path(folder) / "images").mkdir()
    (images / "pages-1.img").write_text(content)
    (images / "timens-1.img").write_text("")
    (images / "timens-1.img").chmod(0o644)
    settling.memory.note(ident)
    (hot_of(settling, ident)).mkdir()
    return images


def hot_of(settling: Settling, ident: str) -> Path:
    return Path(settling.memory.folder).parent / "hot" / ident


def shown(folder: Path) -> dict[str, tuple[str, int]]:
    return {path.name: (path.read_text(), path.stat().st_mode) for path in folder.iterdir()}


def nothing() -> None:
    return


def test_what_was_held_meanwhile_is_copied_once(settling: Settling) -> None:
    images = born(settling, "a")
    settling.copy_out("a", nothing)
    assert shown(hot_of(settling, "a") / "images") == shown(images)
    before = os.stat(hot_of(settling, "a") / "images")
    settling.copy_out("a", nothing)
    assert os.stat(hot_of(settling, "a") / "images") == before
    assert settling.memory.images("a") == str(images), "until it is forgotten"
    assert settling.memory.forget("a")
    assert not settling.memory.forget("a")
    assert settling.memory.images("a") is None


def test_a_copy_that_is_cut_off_leaves_nothing(settling: Settling) -> None:
    born(settling, "a")

    def cut() -> None:
        if any(hot_of(settling, "a").glob(".images/*")):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        settling.copy_out("a", cut)
    assert list(hot_of(settling, "a").iterdir()) == []
    assert not settling.is_lost("a")


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_a_disk_that_is_full_keeps_them_in_memory_whole(settling: Settling) -> None:
    hot = hot_of(settling, "a").parent
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", hot], check=True)
    try:
        images = born(settling, "a", "pages" * 20_000)
        before = shown(images)
        assert not settling.has_room("a", 0)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            settling.copy_out("a", nothing)
        assert list(hot_of(settling, "a").iterdir()) == []
        assert settling.memory.images("a") == str(images)
        subprocess.run(["mount", "-o", "remount,size=1m", hot], check=True)
        assert settling.has_room("a", 0)
        settling.copy_out("a", nothing)
        assert shown(images) == shown(hot_of(settling, "a") / "images") == before
    finally:
        subprocess.run(["umount", hot], check=True)


def test_what_an_earlier_daemon_has_left_is_seen_to(settling: Settling) -> None:
    kept, unknown = born(settling, "kept"), shown(born(settling, "unknown"))
    born(settling, "gone")
    hot_of(settling, "gone").rmdir()
    born(settling, "twice")
    settling.copy_out("twice", nothing)
    hot_of(settling, "half").mkdir()
    (hot_of(settling, "half") / ".images").mkdir()
    hot_of(settling, "lost").mkdir()

    settling.finish(["kept", "twice", "half", "lost"])

    assert settling.memory.list() == os.listdir(settling.memory.folder) == ["kept"]
    assert kept.is_dir()
    assert shown(hot_of(settling, "unknown") / "images") == unknown, "nobody will ask for it"
    assert sorted(settling.without_images()) == ["half", "lost"]
    assert os.listdir(hot_of(settling, "half")) == []


@pytest.mark.parametrize(("machine_gib", "most_mib"), [(2, 256), (8, 1024), (256, 1024)])
def test_usually_an_eighth_of_the_memory_is_for_images_and_no_more_than_a_gibibyte(
    settling: Settling, monkeypatch: pytest.MonkeyPatch, machine_gib: int, most_mib: int
) -> None:
    monkeypatch.setattr(memory_limits, "total_bytes", lambda: machine_gib << 30)
    settling.memory.open(None)
    assert settling.memory.most_bytes == most_mib << 20
    settling.memory.open(5)
    assert settling.memory.most_bytes == 5, "as config.json says"
    assert MOST_EACH == 64 << 20


def test_there_is_an_end_to_what_is_in_memory(settling: Settling) -> None:
    born(settling, "a")
    assert settling.memory.make("large", MOST_EACH, HOST) is None
    settling.memory.most_bytes = settling.memory.used_bytes() + (1 << 20)
    assert settling.memory.make("more", 1, HOST) is None
    assert settling.memory.make("fits", 0, HOST) is not None
    settling.memory.most_bytes = 1 << 40
    os.rename(settling.memory.folder, f"{settling.memory.folder}-away")
    assert settling.memory.make("nowhere", 1, HOST) is None
    assert not settling.has_images("a")


def test_what_is_in_memory_yet_counts_as_what_a_capture_has(settling: Settling, tmp_path: Path) -> None:
    """So a budget for what captures have is one for both, and what goes is what is counted."""
    hot = Hot(tmp_path)
    hot.in_memory = settling.memory
    measures = Measures(Area(cast(Pool, None), hot), Torn(tmp_path))
    empty = measures.hot_bytes_of()
    born(settling, "a", "x" * 100_000)
    (hot_of(settling, "a") / "seen.json").write_bytes(bytes(50_000))
    of_a = measures.hot_bytes_of("a")
    assert of_a >= 150_000
    assert measures.hot_bytes_of() == empty + of_a
    hot.remove("a")
    assert (measures.hot_bytes_of(), os.listdir(settling.memory.folder)) == (empty, [])
