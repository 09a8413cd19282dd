"""The host's other mounts: a session sees them; its changes stay in the session."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, mounted, session
from tests.answers import texts
from tests.chaos import victims
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage.mounts import read_mounts

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


def test_writes_to_a_mount_stay_in_the_session(corner: Path) -> None:
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
        home.must("stop", "--files", "mounts")
        home.must("shell", "mounts", "-d")
        assert inside(home, "mounts", f"cat {disk}/kept; ls -d {memory}/a/b") == f"new\n{memory}/a/b\n"


@pytest.mark.soak(part="walls")
def test_a_mount_has_the_mode_and_owner_of_the_host(tmp_path: Path) -> None:
    place = make_place(tmp_path, "open")
    with mounted(place, "-t", "tmpfs", "-o", "mode=1777,uid=7,gid=8", "none"), open_home("acc") as home:
        with session(home, "root") as branch:
            assert inside(home, branch, f"stat -c '%a %u %g' {place}") == "1777 7 8\n"
            inside(home, branch, f"chmod 700 {place}")
            home.must("stop", "--files", branch)
            home.must("shell", branch, "-d")
            assert inside(home, branch, f"stat -c %a {place}") == "700\n"
        assert place.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.soak(part="walls")
def test_changes_of_one_mount_never_appear_in_another(tmp_path: Path) -> None:
    """Mounts appear and disappear while the branch has no session, so their order in the list changes."""
    first, second = make_place(tmp_path, "a-first"), make_place(tmp_path, "b-second")
    with mounted(second, "-t", "tmpfs", "none"), mounted(first, "-t", "tmpfs", "none"), open_home("acc") as home:
        home.must("shell", "moved", "-d", "--user", "root")
        inside(home, "moved", f"touch {first}/of-first {second}/of-second")
        home.must("stop", "--files", "moved")
        home.must("daemon", "stop")
        subprocess.run(["umount", str(first)], check=True)
        done = home.must("shell", "moved", "-d")
        assert f"degraded: {first} (no longer mounted here" in done.stderr
        assert inside(home, "moved", f"ls {first} {second}") == f"{first}:\n\n{second}:\nof-second\n"
        home.must("stop", "--files", "moved")
        home.must("daemon", "stop")
        subprocess.run(["mount", "-t", "tmpfs", "none", str(first)], check=True)
        home.must("shell", "moved", "-d")
        assert inside(home, "moved", f"ls {first} {second}") == f"{first}:\nof-first\n\n{second}:\nof-second\n"


@pytest.mark.soak(part="walls")
def test_files_are_restored_although_an_unchanged_mount_is_gone(tmp_path: Path) -> None:
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
        assert f"the machine no longer has this mount {written}" in done.stderr
        assert inside(home, "gone", f"cat {written}/file") == "lost\n"
        found = re.search("next: mount it again, or restore the capture on a new branch: waypoint (.*)", done.stderr)
        assert found
        home.must(*found[1].replace("BRANCH", "elsewhere").split())
        assert inside(home, "elsewhere", "cat /srv/file") == "before\n"
        for place in (untouched, written):
            subprocess.run(
                ["mount", "-m", "-t", "tmpfs", "none", str(place)], check=True
            )  # unmounted when `mounted` exits
        home.must("restore", "before", "--only", "files")
        assert inside(home, "gone", f"cat /srv/file; ls {written}") == "before\n"


@pytest.mark.soak(part="walls")
@pytest.mark.requires("criu")
def test_a_restored_session_has_its_changes_of_a_mount_that_is_gone(tmp_path: Path) -> None:
    """The same holds for a mount inside that mount."""
    place = make_place(tmp_path, "outer")
    with contextlib.ExitStack() as disks:
        disks.enter_context(mounted(place, "-t", "tmpfs", "none"))
        below = make_place(place, "below")
        disks.enter_context(mounted(below, "-t", "tmpfs", "none"))
        fill(place)
        with open_home("acc") as home:
            home.must("shell", "gone", "-d", "--user", "root")
            inside(home, "gone", f"kept=yes; echo new >{place}/new; echo newer >{below}/newer; exec 8<{place}/kept")
            home.must("checkpoint", "before", "-b", "gone", "--tier", "live")
            disks.close()
            place.rmdir()
            done = home.must("restore", "before", "-b", "gone", "--tier", "live")
            told = [
                f"{one} (no longer mounted here: only the files that the session has changed exist)"
                for one in (place, below)
            ]
            assert done.stderr.splitlines()[-2:] == [f"degraded: {one}" for one in told]
            assert inside(home, "gone", f"echo $kept; cd {place}; find . | sort; cat new below/newer - <&8; cd /") == (
                "yes\n.\n./below\n./below/newer\n./kept\n./new\nnew\nnewer\nof the host\n"
            )
            (fork,) = home.must("fork", "before", "copy", "--json").json()
            changed, *others = fork["degraded"]
            assert (changed["code"], changed["subject"]) == ("base-files-changed", f"{place}/kept")
            assert texts(others) == told
            assert inside(home, "copy", f"cat {below}/newer - <&8") == "newer\nof the host\n"
            home.must("checkpoint", "again", "-b", "copy", "--tier", "live")
            home.must("restore", "again")


@pytest.mark.soak(part="walls")
def test_a_read_only_mount_is_reported_as_left_out(tmp_path: Path) -> None:
    place = make_place(tmp_path, "read-only")
    with mounted(place, "-t", "tmpfs", "-o", "ro", "none"), open_home("acc") as home:
        done = home.must("shell", "told", "-d", "--json")
        assert done.stderr == ""  # the session was not started in that mount
        assert f"{place} (tmpfs: read-only)" in texts(json.loads(done.stdout)["left_out"])


@pytest.mark.soak(part="walls")
def test_a_mount_that_overlayfs_refuses_is_left_out(tmp_path: Path) -> None:
    """Here the mount is an overlay of an overlay; on real machines it may be /boot/efi."""
    below, place = make_place(tmp_path, "below"), make_place(tmp_path, "place")
    first, second, third = (make_place(tmp_path, name) for name in ("first", "second", "third"))
    options = "lowerdir={}:{}".format
    with (
        mounted(below, "-t", "overlay", "-o", options(first, second), "none"),
        mounted(place, "-t", "overlay", "-o", f"{options(below, third)},upperdir={first},workdir={second}", "none"),
        open_home("acc") as home,
    ):
        left_out = home.must("shell", "refused", "-d", "--user", "root", "--json").json()["left_out"]
        assert any(line.startswith(f"{place} (overlay: overlayfs refuses it") for line in texts(left_out))
        assert inside(home, "refused", f"ls -A {place}; echo works") == "works\n"


def daemon_sees(home: Home, place: Path) -> bool:
    """Whether the daemon's mount namespace has a mount at the place."""
    return str(place) in {
        mount.mount_point for mount in read_mounts(home.must("daemon", "status", "--json").json()["pid"])
    }


@pytest.mark.soak(part="walls")
def test_a_session_sees_a_mount_made_after_the_daemon_started(home: Home, tmp_path: Path) -> None:
    """Even if / is a private mount, so that the kernel does not pass new mounts on to the daemon's namespace."""
    place = make_place(tmp_path, "late")
    with session(home, "root"), mounted(place, "-t", "tmpfs", "none"):
        subprocess.run(["mount", "--make-shared", str(place)], check=True)
        fill(place)
        below = make_place(place, "below")
        done = home.must("shell", "late", "-d", "--user", "root", cwd=place)
        try:
            assert done.stderr == ""
            assert inside(home, "late", "pwd; cat kept; echo new >kept") == f"{place}\nof the host\n"
            with mounted(below, "-t", "tmpfs", "none"):
                fill(below)
                with session(home, "root") as branch:
                    assert inside(home, branch, f"cat {place}/kept {below}/kept") == 2 * "of the host\n"
                assert names(place) == ["below", "kept", "removed"]
                here = [mount for mount in read_mounts() if mount.mount_point.startswith(str(place))]
                assert [mount.mount_point for mount in here] == [str(place), str(below)]  # no mount of Waypoint's
        finally:
            home.must("stop", "late", "--discard")


def test_an_unmounted_device_is_released_at_once(home: Home, tmp_path: Path) -> None:
    """Neither the daemon nor the running session keeps the device busy."""
    place, image = make_place(tmp_path, "stick"), tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with session(home, "root") as before:
        with mounted(place, "-o", "loop", str(image)):
            fill(place)
            device = next(mount.source for mount in read_mounts() if mount.mount_point == str(place))
            wait_until(lambda: daemon_sees(home, place), "the daemon sees the mount")
        wait_until(lambda: not Path(f"/sys/block/{Path(device).name}/loop").exists(), "the device is free")
        assert not daemon_sees(home, place)
        with session(home, "root") as after:
            for branch in (before, after):
                assert inside(home, branch, f"ls -A {place}") == ""


def test_a_session_starts_although_a_mount_disappears_during_the_start(home: Home, tmp_path: Path) -> None:
    """The daemon has planned the session with that mount. It plans again without it."""
    place = make_place(tmp_path, "going")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    with session(home, "root"):
        (launcher,), (daemon,) = victims.pids(home, "launcher"), victims.pids(home, "daemon")
        trees = Path(f"/proc/{daemon}/root{home.path}/pool")
        planned = len(list(trees.glob("*/m0/upper/run/waypoint/branch")))
        os.kill(launcher, signal.SIGSTOP)
        with home.background("shell", "started", "-d") as starting:
            wait_until(
                lambda: len(list(trees.glob("*/m0/upper/run/waypoint/branch"))) > planned, "the session is planned"
            )
            subprocess.run(["umount", str(place)], check=True)
            wait_until(lambda: not daemon_sees(home, place), "the daemon has released the mount")
            place.rmdir()
            os.kill(launcher, signal.SIGCONT)
            assert (starting.wait(PATIENCE_S), starting.stderr and starting.stderr.read()) == (0, b"")
        assert inside(home, "started", "echo $((40 + 2))") == "42\n"
        home.must("stop", "started", "--discard")
    assert re.search(rf"started, first try: .*{place}", (home.path / "daemon.log").read_text())


@pytest.mark.soak(part="walls")
def test_files_of_the_session_in_place_of_a_later_mount_are_kept(home: Home, tmp_path: Path) -> None:
    """The session sees the mount only after it has moved these files away."""
    place = make_place(tmp_path, "later")
    with session(home, "root") as branch:
        inside(home, branch, f"mkdir {place}/own; echo work >{place}/own/file")
        home.must("checkpoint", "early", "-b", branch)
        with mounted(place, "-t", "tmpfs", "none"):
            fill(place)
            home.must("stop", "--files", branch)
            done = home.must("shell", branch, "-d", cwd=place)
            said = "the session has files of its own there: move that away and start the branch again to see the mount"
            assert done.stderr == f"not in the session: {place} ({said})\n"
            assert inside(home, branch, f"cat {place}/own/file; ls {place}") == "work\nown\n"
            for made in ("restore", "early", "-b", branch), ("restore", "early", "--only", "files", "-b", branch):
                home.must(*made)
                assert inside(home, branch, f"cat {place}/own/file; ls {place}") == "work\nown\n"
            home.must("stop", "--files", branch)
            home.must("restore", "early", "--only", "files", "-b", branch)
            assert inside(home, branch, f"cat {place}/own/file; ls {place}") == "work\nown\n"
            inside(home, branch, f"mv {place}/own /srv/own")
            home.must("stop", "--files", branch)
            home.must("shell", branch, "-d")
            assert inside(home, branch, f"cat /srv/own/file; ls -1 {place}") == "work\nkept\nremoved\n"


def test_a_session_that_removed_the_mount_point_starts(home: Home, tmp_path: Path) -> None:
    place = make_place(make_place(tmp_path, "above"), "later")
    with session(home, "root") as branch:
        inside(home, branch, f"rm -r {place.parent}; ln -s /etc {place.parent}")
        home.must("stop", "--files", branch)
        with mounted(place, "-t", "tmpfs", "none"):
            left_out = home.must("shell", branch, "-d", "--json").json()["left_out"]
            assert any(
                line.startswith(f"{place} (the session has changed its mount point: ") for line in texts(left_out)
            )
            assert inside(home, branch, f"readlink {place.parent}") == "/etc\n"
            home.must("stop", "--files", branch)


def test_changes_with_and_without_the_mount_are_both_kept(home: Home, tmp_path: Path) -> None:
    place = make_place(tmp_path, "both")
    with mounted(place, "-t", "tmpfs", "none"), session(home, "root") as branch:
        inside(home, branch, f"touch {place}/with")
        home.must("stop", "--files", branch)
        subprocess.run(["umount", str(place)], check=True)
        done = home.must("shell", branch, "-d")
        assert done.stderr == f"degraded: {place} (no longer mounted here: its changes wait)\n"
        assert inside(home, branch, f"ls {place}; touch {place}/without") == ""
        home.must("stop", "--files", branch)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
        done = home.must("shell", branch, "-d")
        said = "it was changed without its mount: umount it and start the branch again"
        told = f"{place} ({said}: its changes wait)"
        assert done.stderr == f"degraded: {told}\n"
        assert inside(home, branch, f"ls {place}") == "with\n"
        home.must("stop", "--files", branch)
        assert home.must("fork", branch, "twin", "--json").json()[0]["degraded"] == [
            {"code": "changes-hidden", "subject": str(place), "detail": said, "text": told}
        ]
        home.must("stop", "twin", "--discard")
        subprocess.run(["umount", str(place)], check=True)
        home.must("shell", branch, "-d")
        assert inside(home, branch, f"ls {place}") == "without\n"
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)


def test_a_shell_that_cannot_start_in_the_callers_folder_reports_where_it_is(home: Home, tmp_path: Path) -> None:
    place = make_place(tmp_path, "read-only")
    with mounted(place, "-t", "tmpfs", "none"):
        here = make_place(place, "here")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        done = home.must("shell", "elsewhere", "-d", "--user", "root", cwd=here)
        try:
            where = f"not in the session: {here} (cannot be entered: the shell started in /root)"
            assert done.stderr.splitlines() == [f"not in the session: {place} (tmpfs: read-only)", where]
            assert inside(home, "elsewhere", "pwd") == "/root\n"
        finally:
            home.must("stop", "elsewhere", "--discard")
