"""Captures and restores that fail for a cause outside of the session work after the test follows the advice."""

import itertools
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.advice import next_of
from tests.homes import Completed, Home
from tests.places import ROOT
from waypoint.client import Client, Session
from waypoint.model.verbs import MAX_FORKS

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

NUMBERS = itertools.count(1)
LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
WATCHERS = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
held = [libc.inotify_init1(0) for _ in range(int(sys.argv[1]))]
open("/srv/on", "w").close()
time.sleep(1000)
"""
BEHIND_A_FILTER = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.linux.calls import seccomp
seccomp.install(seccomp.assemble({{}}, seccomp.ALLOW))
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def session(home: Home, client: Client, tmp_path: Path) -> Iterator[Session]:
    """A live session with a folder of the host bound at /mnt."""
    tmp_path.chmod(0o755)
    made = client.start(f"b{next(NUMBERS)}", user="root", binds=[f"{tmp_path}:/mnt"])
    made.exec("kept=yes; echo precious > /srv/kept")
    yield made
    home.must("stop", "--all", "--discard")


def advice(done: Completed, code: int, said: str) -> str:
    """Check the error, and return its next step without the alternative to restore only the files."""
    assert (done.code, done.stdout) == (code, ""), done
    assert said in done.stderr
    return next_of(done.stderr).partition("; to restore only the files: ")[0]


def is_back(session: Session) -> bool:
    return session.exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_restore_with_an_open_file_of_the_host_needs_the_unchanged_file(
    home: Home, client: Client, session: Session, tmp_path: Path, *, is_gone: bool
) -> None:
    file, name = tmp_path / "file", f"{session.branch}-cp"
    file.write_text("former")
    session.exec("exec 7</mnt/file")
    session.checkpoint(name, tier="live")
    session.exec("kept=changed; echo changed > /srv/kept")
    file.unlink() if is_gone else file.write_text("another")
    said = f"/mnt/file, which a process had open, {'is missing' if is_gone else 'has changed'}"
    step = advice(home.cli("restore", name, "-b", session.branch, "--tier", "live"), 5, said)
    assert step == ("restore the file" if is_gone else "restore the former version of the file")
    assert session.exec("echo $kept; cat /srv/kept").output == b"changed\nchanged\n"
    file.write_text("former")
    session.restore(name)
    assert is_back(client.session(session.branch))
    assert client.session(session.branch).exec("cat <&7").output == b"former"


def test_a_damaged_image_is_refused_and_another_checkpoint_works(home: Home, client: Client, session: Session) -> None:
    """The image has the right size, but the length of its first message exceeds the file."""
    for name in ("good", "damaged"):
        session.checkpoint(f"{session.branch}-{name}", tier="live")
    capture = client.history.show(f"{session.branch}-damaged").capture
    with (home.path / "hot" / capture / "images/files.img").open("r+b") as image:
        image.seek(8)
        image.write(struct.pack("<I", 1 << 20))
    session.exec("kept=changed; echo changed > /srv/kept")
    refused = home.cli("restore", f"{session.branch}-damaged", "-b", session.branch, "--tier", "live")
    assert advice(refused, 5, "the image is incomplete") == "choose another checkpoint"
    assert session.exec("echo $kept; cat /srv/kept").output == b"changed\nchanged\n"
    session.restore(f"{session.branch}-good")
    assert is_back(client.session(session.branch))


def test_copies_that_need_too_many_inotify_instances_are_refused_at_once(home: Home, session: Session) -> None:
    most, name = int(LIMIT.read_text()), f"{session.branch}-cp"
    each = most // MAX_FORKS + 1
    session.run("sh", "-c", "cat > /srv/watchers.py", stdin=WATCHERS.encode())
    session.exec(f"python3 /srv/watchers.py {each} & until [ -e /srv/on ]; do sleep 0.02; done")
    session.checkpoint(name, tier="live")
    copies = most // each + 1
    refused = home.cli("fork", name, "-n", str(copies), "--json")
    error = refused.json()["error"]
    assert (error["code"], refused.code) == ("criu-inotify-instances", 5), error
    assert error["said"].startswith(f"{copies} copies of its processes need {each * copies} lists of watched files")
    assert error["next"].startswith("raise that limit: sysctl fs.inotify.max_user_instances=1024")


@pytest.mark.soak(part="timing")
def test_the_advice_raises_the_limit_of_inotify_instances(home: Home, client: Client, session: Session) -> None:
    before = LIMIT.read_text()
    session.run("sh", "-c", "cat > /srv/watchers.py", stdin=WATCHERS.encode())
    session.exec(f"python3 /srv/watchers.py {before.strip()} & until [ -e /srv/on ]; do sleep 0.02; done")
    session.checkpoint(f"{session.branch}-cp", tier="live")
    fork = ("fork", f"{session.branch}-cp", f"{session.branch}-2", "--tier", "live")
    step = advice(home.cli(*fork), 5, "as fs.inotify.max_user_instances allows")
    try:
        subprocess.run(shlex.split(step.removeprefix("raise that limit: ")), check=True, stdout=subprocess.DEVNULL)
        home.must(*fork)
    finally:
        LIMIT.write_text(before)
    assert is_back(client.session(f"{session.branch}-2"))


@pytest.mark.requires("seccomp")
def test_a_checkpoint_by_a_daemon_with_a_seccomp_filter_is_refused(
    home: Home, client: Client, session: Session
) -> None:
    home.must("daemon", "stop")
    begin = [sys.executable, "-c", BEHIND_A_FILTER, *home.argv("ps")]
    subprocess.run(begin, env=home.env, check=True, capture_output=True)
    name = f"{session.branch}-cp"
    checkpoint = ("checkpoint", name, "-b", session.branch, "--tier", "live")
    step = advice(home.cli(*checkpoint), 5, "the daemon runs under a filter of system calls")
    assert step == "start the daemon without one (docker: --security-opt seccomp=unconfined)"
    home.must("daemon", "stop")
    home.must("ps")
    home.must(*checkpoint)
    session.exec("kept=changed")
    session.restore(name)
    assert is_back(client.session(session.branch))


def test_a_program_started_from_outside_is_refused_until_it_is_started_inside(
    home: Home, client: Client, session: Session
) -> None:
    """An administrator may start a program in a session this way."""
    facts = session.refresh()
    group = next(Path("/sys/fs/cgroup").rglob(str(facts.id)))
    enter = 'echo $$ >"$1/cgroup.procs"; exec nsenter -a -t "$2" sh -c "sleep 1000 </dev/null >/dev/null 2>&1 &"'
    subprocess.run(["sh", "-ec", enter, "sh", group, str(facts.pid)], check=True)
    name = f"{session.branch}-cp"
    checkpoint = ("checkpoint", name, "-b", session.branch, "--tier", "live")
    step = advice(home.cli(*checkpoint), 5, "belongs to a terminal session whose leader is outside")
    assert step == "start the process again from within the session"
    session.exec("pkill sleep; sleep 1000 &")
    home.must(*checkpoint)
    session.exec("kept=changed")
    session.restore(name)
    assert is_back(client.session(session.branch))
