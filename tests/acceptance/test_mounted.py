"""`waypoint mount`: the files of a capture, on the machine, as long as they are mounted."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside
from tests.cli.conftest import daemon_pid
from tests.corner import corner as corner
from tests.homes import Home, open_home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount at, where nothing is mounted afterwards."""
    folder = tmp_path / "point"
    folder.mkdir()
    try:
        yield folder
    finally:
        while os.path.ismount(folder):
            subprocess.run(["umount", "-R", folder], check=True)


def follow(home: Home, stderr: str, old: str, new: str) -> None:
    """Run the commands that the error advises."""
    step = stderr.partition("\n  next: ")[2].strip().partition(": ")[2].replace(old, new)
    for command in step.split(" && "):
        words = shlex.split(command)
        if words[0] == "waypoint":
            home.must(*words[1:])
        else:
            subprocess.run(words, check=True)


def gone(done: Any) -> list[str]:
    return [one["capture"] for one in done.json()["removed"]]


def test_a_capture_stays_as_long_as_it_is_mounted(point: Path, person: Person) -> None:
    with open_home("mounted") as home:
        home.must("shell", "main", "-d", "--user", "root", "--cwd", "/srv")
        inside(home, "main", "echo 1 > f; chown 1234 f; cp /bin/true s; chmod 4755 s; rm /etc/issue; mkdir /srv/sub")
        capture = home.must("checkpoint", "a", "--tier", "files", "--json").json()["capture"]
        inside(home, "main", "echo 2 > f")
        home.must("checkpoint", "b", "--tier", "files", "--wait")
        assert home.must("mount", "a", str(point)).stdout == f"{capture[:12]}  at {point}, until it is unmounted\n"
        assert (point / "srv/f").read_text() == "1\n"
        assert ((point / "srv/f").stat().st_uid, (point / "etc/issue").exists()) == (1234, False)
        assert (point / "etc/os-release").read_bytes() == Path("/etc/os-release").read_bytes()
        assert list((point / str(home.path).lstrip("/")).iterdir()) == []  # no home is shown
        line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {point} " in line)
        assert {"ro", "nosuid", "nodev"} <= {*line.split()[5].split(",")}
        with pytest.raises(OSError, match="Read-only"):
            (point / "srv/new").touch()
        asked = ("gc", "--keep-operations", "0", "--json")
        home.must("rm", "a")
        said = f"capture {capture[:12]}: it is mounted at {point}: umount {point}"
        for more in (("--dry-run",), ()):
            done = home.must(*asked, *more)
            assert (gone(done), said in done.json()["stays"]) == ([], True)
        assert home.must("du", "--json").json()["mounted"] == [{"capture": capture, "folder": str(point)}]
        os.kill(daemon_pid(home), signal.SIGKILL)
        assert gone(home.must(*asked)) == []
        started = home.must("shell", "another", "-d", "--json").json()
        assert not any(str(point) in one for one in started["left_out"])
        home.must("stop", "another", "--discard")
        done = home.cli("setup", "--remove", "--yes")
        assert (done.code, f"files of its captures are mounted: {point}\n  next: umount it first" in done.stderr) == (
            4,
            True,
        )
        assert (point / "srv/f").read_text() == "1\n"
        subprocess.run(["umount", point], check=True)
        assert gone(home.must(*asked)) == [capture]
        assert not os.path.ismount(point)


def test_an_evicted_capture_is_brought_back_and_not_evicted_again(point: Path) -> None:
    with open_home("mounts") as home:
        home.must("shell", "main", "-d", "--user", "root", "--cwd", "/srv")
        inside(home, "main", "echo kept > f")
        home.must("checkpoint", "a", "--tier", "files", "--wait")
        assert home.must("evict", "a", "--json").json()["kept"] == []
        home.must("mount", "a", str(point), "--json")
        assert (point / "srv/f").read_text() == "kept\n"
        done = home.cli("evict", "a", "--json")
        assert (done.code, [one.partition(": ")[2] for one in done.json()["kept"]]) == (
            1,
            [f"it is mounted at {point}"],
        )
        done = home.cli("mount", "a", str(point))
        assert (done.code, "files of a capture are mounted there already" in done.stderr) == (4, True)
        assert f"\n  next: unmount it first, or name another folder: umount {point}\n" in done.stderr
        follow(home, done.stderr, "", "")
        assert not os.path.ismount(point)
        assert home.must("evict", "a", "--json").json()["kept"] == []
        refused(home, point)


def refused(home: Home, point: Path) -> None:
    """What is refused, with advice that works."""
    done = home.cli("mount", "main", str(point))
    assert (done.code, "it is a live branch" in done.stderr) == (4, True)
    assert "\n  next: make a capture first: waypoint checkpoint NEW -b main && waypoint mount NEW " in done.stderr
    follow(home, done.stderr, "NEW", "made")
    assert (point / "srv/f").read_text() == "kept\n"
    subprocess.run(["umount", point], check=True)
    done = home.cli("mount", "a", f"{point}/no/such")
    assert (done.code, f"\n  next: make the folder: mkdir -p {point}/no/such" in done.stderr) == (2, True)
    follow(home, done.stderr, "", "")
    home.must("mount", "a", f"{point}/no/such")
    subprocess.run(["umount", f"{point}/no/such"], check=True)
    apart = ["unshare", "--mount", *home.argv("mount", "a", str(point))]
    found = subprocess.run(apart, capture_output=True, text=True, check=False, env=home.env)
    assert (found.returncode, "you are in another mount namespace" in found.stderr) == (3, True), found
    assert f"\n  next: copy what you need: waypoint cp a:/ {point}" in found.stderr
    follow(home, found.stderr, "a:/", "a:/srv")
    assert (point / "srv/f").read_text() == "kept\n"
    done = home.cli("mount", "nobody", str(point))
    assert (done.code, "nothing has this name" in done.stderr) == (2, True), done


def test_only_root_mounts(person: Person, point: Path) -> None:
    with open_home("mounters") as home:
        home.must("setup", "--user", person.name)
        done = person.can(home, "shell", "mine", "-d")
        assert done.returncode == 0
        assert person.can(home, "checkpoint", "cp", "-b", "mine", "--tier", "files").returncode == 0
        done = person.can(home, "mount", "cp", str(point))
        assert (done.returncode, "\n  next: have root do it" in done.stderr) == (3, True)
        assert not os.path.ismount(point)
