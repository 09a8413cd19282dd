"""If names.db is damaged, missing, an older copy or on a full disk, a user who follows the advice loses nothing."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.supervised_home import ending
from tests.homes import Home, open_home
from tests.session import ledger
from tests.session.full_disks import fill, make_room, wait_served
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import PATIENCE_S
from waypoint.client import Client
from waypoint.linux.tasks import lock_holder, procfs

pytestmark = [
    pytest.mark.soak(part="faults"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]


@pytest.fixture
def own() -> Iterator[Home]:
    with open_home("strangers") as home:
        yield home


class Work:
    """A home with a live session (`main`), a parked session, an ended session and a checkpoint."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.client = Client(home.path)
        live = self.client.start("main")
        live.exec("kept=yes; echo precious > /srv/kept; sleep 1000 &")
        live.checkpoint("before", tier="live")
        live.exec("echo changed > /srv/kept")
        parked = self.client.fork("before", "parked")[0]
        parked.checkpoint("parked-now", park=True)
        self.client.start("ended").exec("echo ended > /srv/kept")
        self.client.session("ended").stop()
        pid = live.refresh().pid
        assert pid is not None
        self.process = (pid, procfs.start_ticks(pid))

    def is_running(self) -> bool:
        return procfs.is_same(*self.process)

    def check_all(self) -> None:
        """Check that all sessions and the checkpoint exist, with their state."""
        assert self.is_running()
        assert self.client.session("main").exec("echo $kept; cat /srv/kept").output == b"yes\nchanged\n"
        assert self.client.start("parked").exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
        assert self.client.start("ended").exec("cat /srv/kept").output == b"ended\n"
        (copy,) = self.client.fork("before", "copy")
        assert copy.exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"

    def database(self) -> list[Path]:
        return sorted(self.home.path.glob("names.db*"))


@pytest.fixture
def work(own: Home) -> Work:
    return Work(own)


def follow(next_step: str) -> None:
    """Run the shell command that a next step quotes."""
    (command,) = re.findall(r"'(mkdir [^']*)'", next_step)
    subprocess.run(["sh", "-ec", command], check=True)


def stop_daemon(home: Home, *, kill: bool) -> None:
    if not kill:
        home.must("daemon", "stop")
        return
    daemon = Client(home.path).status().pid
    pids = [lock_holder.signed_by(str(home.runtime / "supervisor.lock")), daemon]
    with ending(*pids):
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that neither is replaced
            for pid in pids:
                os.kill(pid, number)


def test_a_full_disk_is_reported_and_harms_nothing(small_disk: Home) -> None:
    work = Work(small_disk)
    small_disk.must("daemon", "stop")
    fill(small_disk)
    for _trial in range(2):
        done = small_disk.cli("ps")
        assert (done.code, done.stdout) == (125, "")
        assert f"cannot open {small_disk.path}/names.db: No space left on device" in done.stderr
        assert "\n  next: free some disk space there; no data is lost" in done.stderr
        assert work.is_running()
    make_room(small_disk)
    wait_served(small_disk)
    work.check_all()
    ledger.check(small_disk)


@pytest.mark.parametrize("kill", [False, True])
def test_everything_unknown_to_a_new_database_is_kept(work: Work, *, kill: bool) -> None:
    home, away = work.home, work.home.path.parent / "away"
    stop_daemon(home, kill=kill)
    away.mkdir()
    for path in work.database():
        shutil.move(path, away)
    done = home.must("ps")
    assert "no sessions" in done.stderr
    assert "that its names.db does not know; they are kept" in done.stderr
    made = work.client.start("main")
    made.exec("echo new > /srv/kept")
    for _daemon in range(2):  # the folders are marked with the new database now
        stop_daemon(home, kill=True)
        assert "does not know; they are kept" in home.must("ps").stderr
    kinds = {one.kind for one in work.client.strangers()}
    assert kinds == {"processes", "files", "capture", "session"}
    listed = home.cli("doctor").stderr
    assert all(one.path in listed for one in work.client.strangers())
    assert work.is_running()
    home.must("daemon", "stop")
    for path in work.database():
        path.unlink()
    for path in away.iterdir():
        shutil.move(path, home.path)
    work.check_all()
    for _daemon in range(2):
        assert made.facts.id in {one.id for one in work.client.strangers()}
        stop_daemon(home, kill=True)


def test_an_older_copy_of_the_database_removes_nothing(work: Work) -> None:
    home = work.home
    home.must("daemon", "stop")
    older = home.path.parent / "older.db"
    shutil.copy(home.path / "names.db", older)
    later = work.client.start("later")
    later.exec("kept=later; sleep 1000 &")
    later.checkpoint("later-now", tier="live")
    home.must("daemon", "stop")
    newer = home.path.parent / "newer.db"
    shutil.move(home.path / "names.db", newer)
    shutil.copy(older, home.path / "names.db")
    for _daemon in range(2):
        assert later.facts.id in {one.id for one in work.client.strangers()}
        stop_daemon(home, kill=True)
    home.must("ps")
    home.must("daemon", "stop")
    shutil.move(newer, home.path / "names.db")
    assert work.client.strangers() == []
    assert work.client.session("later").exec("echo $kept").output == b"later\n"
    assert work.client.fork("later-now", "again")[0].exec("echo $kept").output == b"later\n"
    work.check_all()
    ledger.check(home)


def test_the_advice_for_a_damaged_database_loses_nothing(work: Work) -> None:
    home = work.home
    home.must("daemon", "stop")
    whole = home.path.parent / "whole.db"
    shutil.copy(home.path / "names.db", whole)
    with (home.path / "names.db").open("r+b") as file:
        file.write(b"\xff" * 4096)
    done = home.cli("ps")
    assert (done.code, done.stdout) == (10, "")
    assert "file is not a database" in done.stderr
    assert "\n  next: replace it by a copy from a backup, or " in done.stderr
    assert (
        "; until a gc, captures and running sessions are kept, and are listed again when the file is back"
        in done.stderr
    )
    follow(done.stderr)
    wait_served(home)
    assert "does not know; they are kept" in home.must("ps").stderr
    assert work.is_running()
    home.must("daemon", "stop")
    for path in work.database():
        path.unlink()
    shutil.move(whole, home.path / "names.db")
    work.check_all()
    assert work.client.strangers() == []
    shutil.rmtree(home.path / "names-kept")


def test_a_log_without_its_database_is_not_removed(work: Work) -> None:
    """The log may have all committed data. SQLite would remove it when it makes a new database."""
    home = work.home
    work.client.start("later").exec("kept=later")
    stop_daemon(home, kill=True)
    away = home.path.parent / "names.db"
    shutil.move(home.path / "names.db", away)
    done = home.cli("ps")
    assert done.code == 10
    assert "its log names.db-wal exists" in done.stderr
    shutil.move(away, home.path / "names.db")
    wait_served(home)
    assert work.client.session("later").exec("echo $kept").output == b"later\n"
    work.check_all()
    assert work.client.strangers() == []


def file_of_main(work: Work, name: str) -> Path:
    """Stop the daemon, and return the path of a file in the runtime folder of the session on main."""
    file = work.home.runtime / "sessions" / (work.client.session("main").facts.id or "") / name
    work.home.must("daemon", "stop")
    return file


def test_an_unreachable_session_continues_and_is_listed(work: Work) -> None:
    home = work.home
    file = file_of_main(work, "record.json")
    file.rename(file.with_name("away"))
    for verb in (["shell", "-d", "main"], ["exec", "-b", "main", "--", "true"], ["stop", "main", "--checkpoint", "c"]):
        done = home.cli(*verb)
        assert done.code == (125 if verb[0] == "exec" else 4), done.stderr
        assert "its session is running, but the daemon cannot reach it" in done.stderr
        assert str(file) in done.stderr
        assert "\n  next: restore this file, then 'waypoint daemon stop'; or end the session and " in done.stderr
    assert home.cli("rm", "main").code == 4
    for option in ([], ["--all"]):
        listed = home.must("ps", *option)
        (line,) = [line for line in listed.stdout.splitlines() if line.startswith("main ")]
        assert line.split()[1] == "unreachable"
        assert f"cannot be reached: main: {file} is missing or damaged" in listed.stderr
        (row,) = [row for row in work.client.sessions() if row.branch == "main"]
        assert (row.state, row.said) == ("unreachable", f"{file} is missing or damaged")
        assert (row.processes or 0) >= 3, "pid 1, the shell and its job"
    assert work.is_running()
    home.must("daemon", "stop")
    file.with_name("away").rename(file)
    work.check_all()


def test_an_unreachable_session_can_be_stopped_and_keeps_its_files(work: Work) -> None:
    work.client.session("main").exec("sync")
    file_of_main(work, "record.json").unlink()
    advised = work.home.cli("shell", "-d", "main").stderr.rstrip().rpartition("and keep its files: waypoint ")[2]
    work.home.must(*advised.split())
    assert not work.is_running()
    ledger.check(work.home)
    assert work.client.start("main").exec("cat /srv/kept").output == b"changed\n"


@pytest.mark.parametrize("content", [None, b"", b"x" * 5000])
def test_a_lost_ring_of_a_terminal_is_replaced_and_reported(work: Work, content: bytes | None) -> None:
    ring = file_of_main(work, "ring")
    ring.unlink()
    if content is not None:
        ring.write_bytes(content)
    said = work.home.must("logs", "main").stdout
    assert said.strip() == "waypoint: the earlier output of this terminal is lost: the file that kept it was removed"
    work.check_all()
    assert work.client.session("main").exec("echo again").output == b"again\n"
    work.home.must("daemon", "stop")
    assert "again" in work.home.must("logs", "main").stdout, "the new ring is kept when the daemon stops"


def test_a_command_continues_when_the_ring_is_lost_and_the_loss_is_reported(work: Work) -> None:
    home = work.home
    with home.background(
        "exec", "-b", "main", "--", "echo one; until [ -e /srv/go ]; do sleep 0.1; done; x=two"
    ) as exec_:
        assert exec_.stdout is not None
        assert exec_.stdout.readline() == b"one\n"
        ring = home.runtime / "sessions" / (work.client.session("main").facts.id or "") / "ring"
        ring.unlink()
        stop_daemon(home, kill=True)
        said = exec_.communicate(timeout=PATIENCE_S)[1]
    assert exec_.returncode == 125
    assert b"a part of the command's output is lost: the terminal's ring was removed" in said
    work.client.session("main").run("touch", "/srv/go")
    assert work.client.session("main").exec("echo $x").output == b"two\n"
    assert work.client.start("main").exec("cat /srv/kept").output == b"changed\n"


def test_a_missing_pool_is_reported_and_used_when_it_is_back(work: Work) -> None:
    home = work.home
    work.client.session("main").stop()
    home.must("daemon", "stop")
    pool, away = home.path / "pool.img", home.path.parent / "pool.img"
    pool.rename(away)
    for _trial in range(2):
        done = home.cli("ps")
        assert (done.code, done.stdout) == (10, "")
        assert f"cannot open the pool of {home.path}: it does not exist" in done.stderr
        assert (
            "\n  next: put the pool back (pool.img, or the folder pool); or begin without it: move names.db away"
            in done.stderr
        )
        assert not pool.exists()
    away.rename(pool)
    assert work.client.start("main").exec("cat /srv/kept").output == b"changed\n"
    assert work.client.fork("before", "copy")[0].exec("echo $kept").output == b"yes\n"


def test_the_advice_for_a_missing_pool_starts_with_an_empty_home(work: Work) -> None:
    home = work.home
    work.client.session("main").stop()
    home.must("daemon", "stop")
    (home.path / "pool.img").unlink()
    follow(home.cli("ps").stderr)
    wait_served(home)
    assert work.client.start("main").exec("cat /srv/kept").output == b"cat: /srv/kept: No such file or directory\n"
    shutil.rmtree(home.path / "names-kept")
