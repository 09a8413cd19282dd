"""The machine's other mounts: a session sees them, and writes to none of them."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, mounted, session
from tests.homes import Home, open_home

pytestmark = pytest.mark.privileged


def make_place(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def fill(place: Path) -> None:
    for name in ("kept", "removed"):
        (place / name).write_text("of the host\n")


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != "lost+found")


def test_what_is_written_in_one_does_not_reach_it(tmp_path: Path) -> None:
    memory, disk = make_place(tmp_path, "memory"), make_place(tmp_path, "disk")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with mounted(memory, "-t", "tmpfs", "none"), mounted(disk, "-o", "loop", str(image)), open_home("acc") as home:
        for place in (memory, disk):
            fill(place)
        home.must("shell", "mounts", "-d", "--user", "root")
        for place in (memory, disk):
            assert inside(home, "mounts", f"cat {place}/kept") == "of the host\n"
            inside(home, "mounts", f"cd {place} && echo new >kept && rm removed && mkdir -p a/b && touch c; cd /")
            assert inside(home, "mounts", f"cat {place}/kept; ls {place} | grep -v lost") == "new\na\nc\nkept\n"
            assert (place / "kept").read_text() == "of the host\n"
            assert names(place) == ["kept", "removed"]
        home.must("stop", "mounts")
        home.must("shell", "mounts", "-d")
        assert inside(home, "mounts", f"cat {disk}/kept; ls -d {memory}/a/b") == f"new\n{memory}/a/b\n"


def test_it_is_as_open_as_on_the_machine(tmp_path: Path) -> None:
    place = make_place(tmp_path, "open")
    with mounted(place, "-t", "tmpfs", "-o", "mode=1777,uid=7,gid=8", "none"), open_home("acc") as home:
        with session(home, "root") as branch:
            assert inside(home, branch, f"stat -c '%a %u %g' {place}") == "1777 7 8\n"
            inside(home, branch, f"chmod 700 {place}")
            home.must("stop", branch)
            home.must("shell", branch, "-d")
            assert inside(home, branch, f"stat -c %a {place}") == "700\n"
        assert place.stat().st_mode & 0o7777 == 0o1777


def test_what_was_changed_in_one_never_appears_in_another(tmp_path: Path) -> None:
    """Mounts come and go while a branch rests; others stand in their place in the list."""
    first, second = make_place(tmp_path, "a-first"), make_place(tmp_path, "b-second")
    with mounted(second, "-t", "tmpfs", "none"), mounted(first, "-t", "tmpfs", "none"), open_home("acc") as home:
        home.must("shell", "moved", "-d", "--user", "root")
        inside(home, "moved", f"touch {first}/of-first {second}/of-second")
        home.must("stop", "moved")
        home.must("daemon", "stop")
        subprocess.run(["umount", str(first)], check=True)
        done = home.must("shell", "moved", "-d")
        assert f"not in the session: {first} (no longer mounted here" in done.stderr
        assert inside(home, "moved", f"ls {first} {second}") == f"{first}:\n\n{second}:\nof-second\n"
        home.must("stop", "moved")
        home.must("daemon", "stop")
        subprocess.run(["mount", "-t", "tmpfs", "none", str(first)], check=True)
        home.must("shell", "moved", "-d")
        assert inside(home, "moved", f"ls {first} {second}") == f"{first}:\nof-first\n\n{second}:\nof-second\n"


def test_one_that_cannot_be_in_the_session_is_told(tmp_path: Path) -> None:
    place = make_place(tmp_path, "read-only")
    with mounted(place, "-t", "tmpfs", "-o", "ro", "none"), open_home("acc") as home:
        done = home.must("shell", "told", "-d", "--json")
        assert f"not in the session: {place} (tmpfs: read-only)\n" in done.stderr
        assert f"{place} (tmpfs: read-only)" in json.loads(done.stdout)["left_out"]


def test_one_that_overlayfs_refuses_costs_its_own_place_and_no_more(tmp_path: Path) -> None:
    """Here for an overlay of an overlay; on other machines for a /boot/efi."""
    below, place = make_place(tmp_path, "below"), make_place(tmp_path, "place")
    first, second, third = (make_place(tmp_path, name) for name in ("first", "second", "third"))
    options = "lowerdir={}:{}".format
    with (
        mounted(below, "-t", "overlay", "-o", options(first, second), "none"),
        mounted(place, "-t", "overlay", "-o", f"{options(below, third)},upperdir={first},workdir={second}", "none"),
        open_home("acc") as home,
    ):
        done = home.must("shell", "refused", "-d", "--user", "root")
        assert f"not in the session: {place} (overlay: overlayfs refuses it" in done.stderr
        assert inside(home, "refused", f"ls -A {place}; echo works") == "works\n"


def test_one_that_came_after_the_daemon_is_there_or_told(home: Home, tmp_path: Path) -> None:
    """There, where / is a shared mount, as systemd makes it."""
    place = make_place(tmp_path, "late")
    with mounted(place, "-t", "tmpfs", "none"):
        (place / "kept").write_text("of the host\n")
        done = home.must("shell", "late", "-d", "--user", "root")
        try:
            is_there = home.cli("exec", "-b", "late", "--", f"cat {place}/kept").stdout == "of the host\n"
            assert is_there != (f"not in the session: {place} (tmpfs: mounted after the daemon" in done.stderr)
        finally:
            home.must("stop", "late", "--discard")
