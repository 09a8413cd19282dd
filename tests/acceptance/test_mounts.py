"""The machine's other mounts: a session sees them, and writes to none of them."""

import contextlib
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


def test_what_is_written_in_one_does_not_reach_it(corner: Path) -> None:
    memory, disk = make_place(corner, "memory"), make_place(corner, "disk")
    image = corner / "image"
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


def test_one_that_is_gone_does_not_keep_files_from_coming_back(tmp_path: Path) -> None:
    untouched, written = make_place(tmp_path, "untouched"), make_place(tmp_path, "written")
    with mounted(untouched, "-t", "tmpfs", "none"), mounted(written, "-t", "tmpfs", "none"), open_home("acc") as home:
        home.must("shell", "gone", "-d", "--user", "root")
        inside(home, "gone", "echo before > /srv/file")
        home.must("checkpoint", "before", "-b", "gone")
        inside(home, "gone", "echo after > /srv/file")
        subprocess.run(["umount", str(untouched)], check=True)
        untouched.rmdir()
        home.must("restore", "before", "--only", "files")
        assert inside(home, "gone", "cat /srv/file") == "before\n"
        inside(home, "gone", f"echo lost > {written}/file")
        subprocess.run(["umount", str(written)], check=True)
        written.rmdir()
        done = home.cli("restore", "before", "--only", "files")
        assert (done.code, done.stdout) == (125, "")
        assert f"the machine has no such mount any more {written}" in done.stderr
        assert inside(home, "gone", f"cat {written}/file") == "lost\n"
        home.must("restore", "before", "--new", "elsewhere")
        assert inside(home, "elsewhere", "cat /srv/file") == "before\n"
        for place in (untouched, written):
            subprocess.run(["mount", "-m", "-t", "tmpfs", "none", str(place)], check=True)  # for `mounted` to remove


@pytest.mark.requires("criu")
def test_of_one_that_is_gone_a_restored_session_has_what_it_changed(tmp_path: Path) -> None:
    """Also of one below it, whose mount point goes with it."""
    place = make_place(tmp_path, "outer")
    with contextlib.ExitStack() as disks:
        disks.enter_context(mounted(place, "-t", "tmpfs", "none"))
        below = make_place(place, "below")
        disks.enter_context(mounted(below, "-t", "tmpfs", "none"))
        fill(place)
        with open_home("acc") as home:
            home.must("shell", "gone", "-d", "--user", "root")
            inside(home, "gone", f"kept=yes; echo new >{place}/new; echo newer >{below}/newer")
            home.must("checkpoint", "before", "-b", "gone", "--tier", "live")
            disks.close()
            place.rmdir()
            done = home.must("restore", "before", "-b", "gone")
            told = [
                f"{one} (no longer mounted here: of its files only what the session has changed is there)"
                for one in (place, below)
            ]
            assert done.stderr.splitlines()[-2:] == [f"degraded: {one}" for one in told]
            assert inside(home, "gone", f"echo $kept; cd {place}; find . | sort; cat new below/newer; cd /") == (
                "yes\n.\n./below\n./below/newer\n./new\nnew\nnewer\n"
            )
            (fork,) = home.must("fork", "before", "copy", "--json").json()
            assert fork["degraded"] == told
            assert inside(home, "copy", f"cat {below}/newer") == "newer\n"
            home.must("checkpoint", "again", "-b", "copy", "--tier", "live")
            home.must("restore", "again")


def test_one_that_cannot_be_in_the_session_is_told(tmp_path: Path) -> None:
    place = make_place(tmp_path, "read-only")
    with mounted(place, "-t", "tmpfs", "-o", "ro", "none"), open_home("acc") as home:
        done = home.must("shell", "told", "-d", "--json")
        assert done.stderr == ""  # it does not matter to what was asked
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
        left_out = home.must("shell", "refused", "-d", "--user", "root", "--json").json()["left_out"]
        assert any(line.startswith(f"{place} (overlay: overlayfs refuses it") for line in left_out)
        assert inside(home, "refused", f"ls -A {place}; echo works") == "works\n"


def test_one_that_came_after_the_daemon_is_there_or_told(home: Home, tmp_path: Path) -> None:
    """There, where / is a shared mount, as systemd makes it."""
    place = make_place(tmp_path, "late")
    with mounted(place, "-t", "tmpfs", "none"):
        (place / "kept").write_text("of the host\n")
        left_out = home.must("shell", "late", "-d", "--user", "root", "--json").json()["left_out"]
        try:
            is_there = home.cli("exec", "-b", "late", "--", f"cat {place}/kept").stdout == "of the host\n"
            assert is_there != any(line.startswith(f"{place} (tmpfs: mounted after the daemon") for line in left_out)
        finally:
            home.must("stop", "late", "--discard")
