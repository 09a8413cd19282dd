"""Wrong homes, users, paths and numbers: each is refused with a message, and nothing is created."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.homes import Completed, Home, open_home
from tests.places import make_temp_root
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged


def refused(done: Completed, code: int, *words: str) -> None:
    assert (done.code, done.stdout) == (code, "")
    assert "waypoint: cannot " in done.stderr
    assert [word for word in (*words, "next: ") if word not in done.stderr] == []
    assert not [word for word in ("Traceback", "bug of Waypoint") if word in done.stderr]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


# --- homes


@pytest.mark.parametrize("path", ["/proc/h", "/proc/1/root", "/etc/hostname", "/etc/hostname/h", "/dev/null", "/proc"])
def test_a_path_that_cannot_be_a_home_is_refused(path: str) -> None:
    home = Home(Path(path))
    refused(home.cli("setup"), 2, path)
    for words in (["ps"], ["doctor"], ["daemon", "run"], ["setup", "--check"]):
        refused(home.cli(*words), 2 if path == "/proc/1/root" else 3, path)  # the kernel forbids to follow this link


@pytest.mark.parametrize(
    "files",
    [{"letter.txt": "mine"}, {"config.json": '{"name": "mine"}'}, {"config.json": "{}", "letter.txt": "mine"}],
    ids=["no config.json", "a config.json of something else", "an empty one among other files"],
)
def test_a_directory_with_foreign_files_is_refused_as_a_home(place: Path, files: dict[str, str]) -> None:
    place.mkdir()
    for name, content in files.items():
        (place / name).write_text(content)
    home = Home(place)
    refused(home.cli("setup"), 2, "not empty", *sorted(files))
    if files.get("config.json") != "{}":  # {} could be a home prepared by hand
        refused(home.cli("ps"), 3, f"waypoint --home {place} setup")
        refused(home.cli("setup", "--remove", "--yes"), 4, "not a home")
    assert {path.name: path.read_text() for path in place.iterdir()} == files


@pytest.mark.soak(part="setup")
def test_the_advised_setup_creates_a_home(place: Path) -> None:
    place.mkdir()
    (place / "letter.txt").write_text("mine")
    said = Home(place).cli("setup").stderr
    assert "waypoint --home DIR setup" in said
    other = Home(Path(make_temp_root()) / f"odd-{os.getpid()}")
    try:
        Home(place).must("--home", str(other.path), "setup")
        assert other.must("ps", "--json").json() == []
    finally:
        other.must("setup", "--remove", "--yes")


@pytest.mark.soak(part="setup")
def test_an_empty_file_system_with_lost_and_found_can_be_a_home() -> None:
    home = Home(Path(make_temp_root()) / f"new-{os.getpid()}")
    (home.path / "lost+found").mkdir(parents=True)
    try:
        home.must("setup")
    finally:
        (home.path / "lost+found").rmdir()
        home.must("setup", "--remove", "--yes")


# --- users, binds, bases, numbers


def test_an_invalid_user_is_refused(home: Home, place: Path) -> None:
    place.mkdir()
    for number, user in enumerate(["²", "\uff11", "٣", str(2**32 - 1), str(2**64), "9" * 5000, "-1", "1_0"]):
        where = ["--base", str(place)] if number % 2 else []
        refused(home.cli("shell", "odd", "-d", f"--user={user}", *where), 2, "--user NAME")
    assert home.must("ps", "--json").json() == []


@pytest.mark.parametrize("path", ["/proc/1/root", "/proc/1/cwd", "/proc/1/ns/net"])
def test_a_link_that_cannot_be_followed_is_refused(home: Home, path: str) -> None:
    try:
        os.path.realpath(path)
        code = 0  # on this machine the link can be followed
    except OSError:
        code = 2
    for words in (["--bind", f"{path}:/mnt/x"], ["--base", path]):
        done = home.cli("shell", "odd", "-d", *words)
        if code:
            refused(done, 2, path, "Permission denied")
        assert "bug" not in done.stderr
        home.cli("stop", "odd", "--discard")


@pytest.mark.soak(part="setup")
@pytest.mark.requires("criu")
def test_setup_works_if_the_caller_ignores_sigchld() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with open_home("deaf") as home:
        config = (home.path / "config.json").read_bytes()
        home.must("setup", "--remove", "--yes")
        home.path.mkdir(mode=0o700)
        (home.path / "config.json").write_bytes(config)
        done = subprocess.run(home.argv("setup"), env=home.env, capture_output=True, check=False, preexec_fn=ignore)
        assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_a_full_stdout_is_reported(home: Home) -> None:
    for words in (("daemon", "status"), ("ps", "--help")):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                home.argv(*words), env=home.env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 125
        said, step = done.stderr.splitlines()
        assert said == "waypoint: cannot finish the command: No space left on device"
        assert step == "  next: repair this, or redirect the output to another file; then run the command again"


# --- CRIU, and the pool


@pytest.fixture
def broken_criu(place: Path) -> str:
    place.write_text("#!/bin/sh\nexit 1\n")
    place.chmod(0o755)
    return str(place)


@pytest.mark.soak(part="setup")
def test_a_broken_criu_in_waypoint_criu_is_reported_with_a_next_step(home: Home, broken_criu: str) -> None:
    bad = {"WAYPOINT_CRIU": broken_criu}
    home.must("daemon", "stop")
    try:
        for words in (["setup"], ["setup", "--check"]):
            refused(home.cli(*words, env=bad), 3, f"$WAYPOINT_CRIU ({broken_criu})", "set WAYPOINT_CRIU to")
        found = home.cli("doctor", "--json", env=bad)
        assert found.code == 3
        rows = {row["capability"]: row for row in found.json()}
        assert {row["state"] for name, row in rows.items() if name.startswith(("CRIU", "dump", "restore"))} == {
            "missing"
        }
        advice = {row["remedy"] for row in rows.values() if row["why"] == rows["CRIU"]["why"]}
        assert len(advice) == 1  # kernel features have the same advice: they could not be tried
        assert advice.pop().startswith(
            "set WAYPOINT_CRIU to a CRIU that works here, or unset it; then `waypoint daemon"
        )
    finally:
        home.must("daemon", "stop")  # the next daemon starts without the broken CRIU
    home.must("setup")


@pytest.mark.soak(part="disks")
@pytest.mark.requires("criu", "btrfs")
def test_doctor_prints_its_table_even_if_the_pool_cannot_be_opened(place: Path) -> None:
    with open_home("poolless") as home:
        home.must("daemon", "stop")
        image = home.path / "pool.img"
        assert image.exists(), "tests whose temporary folder is on btrfs have no pool file"
        kept = image.rename(home.path / "pool.img.kept")
        image.write_bytes(b"no file system" * 1000000)
        try:
            found = home.cli("doctor")
            heading, first, *rest = found.stdout.splitlines()
            assert (found.code, heading.split()[0], first.split()[:3]) == (3, "CAPABILITY", ["the", "home", "missing"])
            assert any(line.startswith("CRIU ") for line in rest)
            rows = home.cli("doctor", "--json").json()
            assert json.dumps(rows[0]["remedy"]) != '""'
        finally:
            home.cli("daemon", "stop")
            shutil.move(kept, image)
        # A daemon that cannot open its home answers with the reason for one second, then it ends.
        wait_until(lambda: home.cli("doctor").stdout.splitlines()[1].split()[0] != "the", "the pool is opened")
