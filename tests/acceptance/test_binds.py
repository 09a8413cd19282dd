"""`shell --bind`: files and folders of the host that a session shares with it."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, put, refused, session
from tests.collecting import collecting
from tests.homes import Home

pytestmark = pytest.mark.privileged


LOCKS = """
import fcntl, os, signal, struct
files = [open(f'/mnt/{number}', 'w') for number in range(3)]
fcntl.flock(files[0], fcntl.LOCK_EX)
fcntl.lockf(files[1], fcntl.LOCK_EX)
fcntl.fcntl(files[2], 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
os.close(os.open('/srv/locked', os.O_CREAT))
signal.pause()
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    tmp_path.chmod(0o777)
    (tmp_path / "file").write_text("of the host\n")
    (tmp_path / "file").chmod(0o666)
    return tmp_path


def test_changes_in_a_bound_folder_are_visible_on_both_sides(home: Home, person: Person, shared: Path) -> None:
    with session(home, person.name, "--bind", f"{shared}:/shared/here") as branch:
        assert inside(home, branch, "cat /shared/here/file") == "of the host\n"
        inside(home, branch, "echo from inside >>/shared/here/file; touch /shared/here/made; rm -f /shared/here/gone")
        assert (shared / "file").read_text() == "of the host\nfrom inside\n"
        (shared / "later").write_text("and back\n")
        assert inside(home, branch, "cat /shared/here/later") == "and back\n"
    assert (shared / "made").exists()  # discarding the session keeps the bound folder
    assert not Path("/shared").exists()


def test_files_can_be_bound_several_times_and_read_only(home: Home, shared: Path) -> None:
    binds = [f"{shared}/file:/etc/hostname", f"{shared}/file:/opt/new/read-only:ro", f"{shared}:/mnt:ro"]
    with session(home, "root", *(word for bind in binds for word in ("--bind", bind))) as branch:
        assert inside(home, branch, "cat /etc/hostname /opt/new/read-only /mnt/file") == "of the host\n" * 3
        inside(home, branch, "echo changed >/etc/hostname")
        for attempt in ("echo x >/opt/new/read-only", "touch /mnt/x", "rm /mnt/file", "mount -o remount,rw,bind /mnt"):
            assert home.cli("exec", "-b", branch, "--", attempt).code != 0
    assert (shared / "file").read_text() == "changed\n"
    assert Path("/etc/hostname").read_text() != "changed\n"
    assert [path.name for path in shared.iterdir()] == ["file"]


def test_a_branch_keeps_its_binds(home: Home, shared: Path) -> None:
    home.must("shell", "bound", "-d", "--bind", f"{shared}:/mnt")
    inside(home, "bound", "echo kept >/opt/kept")
    home.must("stop", "--files", "bound")
    home.must("shell", "bound", "-d")
    assert inside(home, "bound", "cat /mnt/file /opt/kept") == "of the host\nkept\n"
    home.must("stop", "--files", "bound")
    (shared / "file").rename(shared / "moved")
    shared.rename(shared.with_name("elsewhere"))
    done = home.cli("shell", "bound", "-d")
    assert done.code != 0
    assert str(shared) in done.stderr
    shared.with_name("elsewhere").rename(shared)


def test_binds_over_system_folders_and_malformed_binds_are_refused(home: Home, shared: Path) -> None:
    with collecting() as row:
        for target in (
            *(
                "/",
                "/proc",
                "/proc/self",
                "/sys",
                "/sys/kernel",
                "/dev",
                "/dev/null",
                "/.waypoint",
                "/.waypoint/setsid",
            ),
            *("/.waypoint/setsid", "/run/waypoint", "/run/waypoint/go", "//", "/../..", "/tmp/../proc/x"),
            *("relative", "./x", ""),
        ):
            with row(target):
                assert "bind" in refused(home, "--bind", f"{shared}:{target}")
        for bind in ("", ":", "/tmp", "/no/such/thing:/mnt", "/tmp:/mnt:rw", "/tmp:/mnt:ro:x", ":/mnt"):
            with row(bind):
                said = refused(home, "--bind", bind)
                assert "bind" in said
                assert "next: " in said


def test_a_bind_target_behind_a_link_of_the_session_changes_nothing_outside(
    home: Home, shared: Path, tmp_path: Path
) -> None:
    with session(home, "root") as branch:
        inside(home, branch, f"ln -s {tmp_path} /opt/link; ln -s / /opt/top")
        home.must("stop", "--files", branch)
        for target in ("/opt/link/x", "/opt/link", "/opt/top/etc/waypoint-was-here"):
            done = home.cli("shell", branch, "-d", "--bind", f"{shared}:{target}")
            assert done.code != 0
            assert "bind" in done.stderr or "link" in done.stderr
    assert not Path("/etc/waypoint-was-here").exists()
    assert not (tmp_path / "x").exists()


REACH = """
import os, socket, sys
def reached(path):
    try:
        if path.endswith("fifo"):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        else:
            socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        return "refused"
    return "reached"
print([reached(path) for path in sys.argv[1:]])
"""


def test_a_read_only_bind_gives_a_session_the_sockets_and_fifos_of_its_user_only(
    home: Home, person: Person, shared: Path
) -> None:
    (shared / "reach.py").write_text(REACH)
    paths = {name: shared / name for name in ("root-socket", "root-fifo", "user-socket", "user-fifo")}
    with contextlib.ExitStack() as held:
        for name, path in paths.items():
            if name.endswith("fifo"):
                os.mkfifo(path)
                held.callback(os.close, os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            else:
                server = held.enter_context(socket.socket(socket.AF_UNIX))
                server.bind(str(path))
                server.listen()
            path.chmod(0o600)
            if name.startswith("user"):
                os.chown(path, person.uid, person.gid)
        look = f"python3 /mnt/reach.py {' '.join(f'/mnt/{name}' for name in paths)}"
        for user, of_root in (("root", "reached"), (person.name, "refused")):
            with session(home, user, "--bind", f"{shared}:/mnt:ro") as branch:
                assert inside(home, branch, look) == f"{[of_root, of_root, 'reached', 'reached']}\n"
        for name, kind in (("root-socket", "socket"), ("root-fifo", "FIFO")):
            assert f":ro would not protect this {kind}" in refused(home, "--bind", f"{paths[name]}:/mnt/x:ro")
            with session(home, "root", "--bind", f"{paths[name]}:/mnt/x"):
                pass


def locked(folder: Path) -> list[bool]:
    """Whether somebody has the lock that a process of LOCKS takes, for each of the files."""
    found = []
    for number, take in enumerate((fcntl.flock, fcntl.lockf, fcntl.lockf)):
        with (folder / str(number)).open("r+") as file:
            try:
                take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(True)
            else:
                found.append(False)
    return found


@pytest.mark.requires("criu")
def test_a_copy_takes_the_locks_on_shared_files_that_are_free_and_waits_for_none(home: Home, shared: Path) -> None:
    with session(home, "root", "--bind", f"{shared}:/mnt") as branch:
        put(home, branch, "/srv/locks.py", LOCKS)
        inside(home, branch, "python3 /srv/locks.py & until [ -e /srv/locked ]; do sleep 0.01; done")
        home.must("checkpoint", "with-locks", "-b", branch, "--tier", "live")
        second = home.must("fork", "with-locks", f"{branch}-2", "--tier", "live")
        lost = [f"degraded: the lock on /mnt/{number} of python3" for number in range(3)]
        assert [line.partition(" (pid")[0] for line in second.stderr.splitlines()] == lost
        home.must("stop", f"{branch}-2", "--discard")
        home.must("stop", "--files", branch)
        assert locked(shared) == [False] * 3
        third = home.must("fork", "with-locks", f"{branch}-3", "--tier", "live")
        assert third.stderr == ""
        assert locked(shared) == [True] * 3
        home.must("stop", f"{branch}-3", "--discard")
        home.must("rm", "with-locks")
