"""`waypoint cat` and `waypoint cp`: the files of live sessions and captures, read, copied out, copied in."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.cli.conftest import daemon_pid
from tests.corner import corner as corner
from tests.homes import Home, open_home
from tests.parcel.attachable import acl_of
from tests.session.let_in import refused, succeeds
from tests.session.pauses import Armed, Pauses
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import CopyStep
from waypoint.client import Client
from waypoint.client.files.file_channel import FileChannel
from waypoint.model.errors import UsageProblem
from waypoint.parcel.parcel_records import ParcelItem, encode

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

READABLE = "name a file that you may read"
WRITABLE = "name a folder that is there, and that you may write to"
SEND_AS = "send it as docs/protocol.md, section 2, describes it"
FURNISH = r"""
mkdir -p d/e; printf 'a\0\377b' > a; ln a d/hard; ln -s /etc/hostname link; ln -s ../../../../../../../etc/hostname up
ln -s /proc/1/root/etc/shadow magic; mkfifo fifo; printf x > d/$(printf 'n\377'); chown 1234:5678 d/e; chmod 4755 d/hard
truncate -s 4G d/holes; echo end >> d/holes; echo mine > /etc/hostname; rm /etc/issue; python3 -c '
import os, socket; os.setxattr("a", "user.k", b"v"); socket.socket(socket.AF_UNIX).bind("sock")
os.setxattr("d/e", "system.posix_acl_default", bytes.fromhex("ACL"))'
""".replace("ACL", acl_of(77).hex())


@pytest.fixture(scope="module")
def branch(home: Home) -> Iterator[str]:
    with session(home, "root", "--cwd", "/srv") as name:
        inside(home, name, FURNISH)
        home.must("checkpoint", f"{name}-files", "-b", name, "--tier", "files", "--wait")
        yield name


@pytest.fixture(params=["live", "capture"])
def seen(request: pytest.FixtureRequest, branch: str) -> str:
    return branch if request.param == "live" else f"{branch}-files"


def says(done: Any, code: int, said: str, next_step: str) -> None:
    assert (done.code, done.stdout) == (code, ""), done
    assert f": {said}" in done.stderr
    assert f"\n  next: {next_step}" in done.stderr


def test_a_file_is_read_as_the_session_sees_it(home: Home, seen: str) -> None:
    assert home.must("cat", f"{seen}:a").raw == home.must("cp", f"{seen}:a", "-").raw == b"a\0\xffb"
    assert "\n  next: name a place for the copy instead of -\n" in home.cli("cp", f"{seen}:a", "-", "--json").stderr
    says(home.cli("cp", f"{seen}:d", "-"), 2, "it is a folder", f"copy the folder: waypoint cp {seen}:d .")
    assert not Path("-").exists()
    assert home.must("cat", f"{seen}:/srv/d/../a").raw == b"a\0\xffb"
    for path in ("link", "up", "/etc/hostname"):
        assert home.must("cat", f"{seen}:{path}").stdout == "mine\n"
    assert home.must("cat", f"{seen}:/etc/os-release").raw == Path("/etc/os-release").read_bytes()
    assert home.must("cat", b"%s:d/n\xff" % seen.encode()).raw == b"x"
    for path in ("/etc/issue", "nothing", "a/b"):
        says(home.cli("cat", f"{seen}:{path}"), 2, "No", READABLE)
    says(home.cli("cat", f"{seen}:fifo"), 2, "it is a FIFO", READABLE)
    says(home.cli("cat", f"{seen}:sock"), 2, "it is a socket", READABLE)
    says(home.cli("cat", f"{seen}:d"), 2, "it is a folder", f"copy the folder: waypoint cp {seen}:d .")
    assert home.cli("cat", f"{seen}:magic").code == 2  # /proc/1/root of the session leads nowhere
    says(home.cli("cat", "a"), 2, "it is not NAME:PATH", "name a capture or branch, and a file: NAME:PATH")
    assert home.cli("cat", "nobody:a").code == 2


def test_views_of_the_kernel_are_no_files(home: Home, branch: str) -> None:
    for path in ("/proc/1/environ", "/sys/kernel/notes", "/proc/../proc/1/status"):
        says(home.cli("cat", f"{branch}:{path}"), 2, "it is a view of the kernel's", READABLE)
    says(home.cli("cat", f"{branch}:/dev/zero"), 2, "it is a device", READABLE)
    done = home.cli("cp", f"{branch}:/proc", "/nowhere/x")
    assert (done.code, done.stderr) == (1, "left out: proc: it is a view of the kernel's\n")
    says(
        home.cli("cp", "/etc/hostname", f"{branch}:/proc/1/x"), 2, "No such file or directory: .waypoint-cp-", WRITABLE
    )


def check_copy(there: Path) -> None:
    hard = (there / "d/hard").stat()
    assert ((there / "a").read_bytes(), hard.st_nlink) == (b"a\0\xffb", 2)
    assert oct(hard.st_mode & 0o7777) == "0o755"  # no set-user-id bit
    assert os.getxattr(there / "a", "user.k") == b"v"
    assert os.getxattr(there / "d/e", "system.posix_acl_default") == acl_of(77)
    assert os.readlink(there / "up").endswith("../etc/hostname")
    assert ((there / "d/e").stat().st_uid, (there / "d/e").stat().st_gid) == (1234, 5678)
    assert (there / "a").stat().st_uid == 0
    assert Path(os.fsdecode(os.fsencode(there / "d") + b"/n\xff")).read_text() == "x"
    holes = (there / "d/holes").stat()
    assert (holes.st_size, holes.st_blocks < 100) == ((4 << 30) + 4, True)


def test_a_folder_is_copied_out(home: Home, seen: str, tmp_path: Path) -> None:
    done = home.cli("cp", f"{seen}:.", str(tmp_path / "to"), "--json")
    assert done.code == 1
    told = {"/fifo: it is a FIFO", "/sock: it is a socket"}
    assert {*done.json()["left_out"]} == told
    assert {*done.stderr.splitlines()} == {f"left out: {one}" for one in told}
    check_copy(tmp_path / "to")
    home.must("cp", f"{seen}:d/e", str(tmp_path))
    assert (tmp_path / "e").is_dir()
    home.must("cp", f"{seen}:link", "here", cwd=str(tmp_path))
    assert os.readlink(tmp_path / "here") == "/etc/hostname"


def test_what_is_in_the_store_alone_is_brought_back(home: Home, branch: str) -> None:
    evicted: dict[str, Any] = home.must("evict", f"{branch}-files", "--json").json()
    assert len(evicted["evicted"]) == 1
    assert home.must("cat", f"{branch}-files:a").raw == b"a\0\xffb"


def test_a_folder_is_copied_in(home: Home, branch: str, tmp_path: Path) -> None:
    home.cli("cp", f"{branch}:.", str(tmp_path / "out"))
    (tmp_path / "out/d/hard").chmod(0o2755)
    with session(home, "root", "--cwd", "/srv") as other:
        (tmp_path / "a:b").write_text("colon")
        home.must("cp", "./a:b", f"{other}:", cwd=str(tmp_path))
        assert inside(home, other, "cat a:b") == "colon"
        home.must("cp", str(tmp_path / "out"), f"{other}:/srv/in")
        found = inside(home, other, "cd in; stat -c '%n %u %g %a %h' a d/hard d/e; cat d/n*; stat -c %s d/holes; cd ..")
        assert found == f"a 0 0 2755 2\nd/hard 0 0 2755 2\nd/e 1234 5678 755 1\nx{(4 << 30) + 4}\n"
        tell = 'import os; print(os.getxattr("in/d/e", "system.posix_acl_default").hex())'
        assert inside(home, other, f"python3 -c '{tell}'") == f"{acl_of(77).hex()}\n"
        assert inside(home, other, "du -s in | cut -f1").strip().isdecimal()
        assert int(inside(home, other, "du -sm in | cut -f1")) < 5
        assert home.must("cp", "/etc/hostname", f"{other}:in/a", "--json").json()["entries"] == 1
        assert home.must("cat", f"{other}:in/a").raw == Path("/etc/hostname").read_bytes()
        says(home.cli("cp", "/etc/hostname", f"{other}:no/x"), 2, "No such file", WRITABLE)
        says(home.cli("cp", "/etc/hostname", f"{other}:in/d/hard/"), 2, "Not a directory", WRITABLE)
        assert inside(home, other, "ls -A in | grep -c waypoint-cp; true") == "0\n"


def test_a_capture_is_only_read(home: Home, branch: str, tmp_path: Path) -> None:
    name = f"{branch}-files"
    way = f"start a branch from it: waypoint shell NEW --from {name} -d"
    done = home.cli("cp", "/etc/hostname", f"{name}:x")
    says(done, 4, "it is no live session, and a capture never changes", way)
    home.must("shell", f"{branch}-new", "--from", name, "-d")
    home.must("cp", "/etc/hostname", f"{branch}-new:x")
    assert home.must("cat", f"{branch}-new:x").raw == Path("/etc/hostname").read_bytes()
    home.must("stop", f"{branch}-new", "--discard")
    step = "copy out of one session and into the other: waypoint cp NAME:PATH ./FILE"
    says(home.cli("cp", f"{name}:a", f"{branch}:b"), 2, "one of them must be NAME:PATH", step)
    home.must("cp", f"{name}:a", "./FILE", cwd=str(tmp_path))
    home.must("cp", "./FILE", f"{branch}:b", cwd=str(tmp_path))
    mend = "mend that, and copy again: what is whole is replaced"
    says(home.cli("cp", "nothing", f"{branch}:b", cwd=str(tmp_path)), 2, "No such file or directory: nothing", mend)
    says(home.cli("cp", f"{branch}:a", "no/such", cwd=str(tmp_path)), 2, "No such file or directory: no", mend)


def test_a_session_that_swaps_folders_for_links_leads_nobody_out(home: Home, branch: str, tmp_path: Path) -> None:
    """Neither what is read nor what is written leaves the session, whatever a process in it does meanwhile."""
    marker = Path("/srv/waypoint-marker-outside")
    (tmp_path / "many").mkdir()
    for number in range(30):
        (tmp_path / f"many/{number}").write_text("from outside")
    marker.mkdir()
    try:
        (marker / "secret").write_text("the machine's")
        inside(home, branch, f"mkdir race; rm -rf {marker}; mkdir {marker}; echo theirs > {marker}/secret")
        inside(
            home,
            branch,
            f"""cat > swap.sh <<'X'
while n=$((n+1)); do mv race r2; ln -s {marker} race; sleep 0.01; echo $n > swaps.new
mv swaps.new swaps; rm race; mv r2 race; sleep 0.01; done
X
echo real > race/secret; echo 0 > swaps; (sh swap.sh >/dev/null 2>&1 &)""",
        )
        copied, seen, rounds = 0, set[str](), 0
        while rounds < 12 or not seen >= {"theirs\n", "real\n"} or int(inside(home, branch, "cat swaps")) < 100:
            copied += home.cli("cp", str(tmp_path / "many"), f"{branch}:race/x").code == 0
            seen.add(home.cli("cat", f"{branch}:race/secret").stdout)
            rounds += 1
            assert rounds < 80, seen
        assert copied > 0
        assert seen <= {"", "theirs\n", "real\n"}
        assert [path.name for path in marker.iterdir()] == ["secret"]
        assert (marker / "secret").read_text() == "the machine's"
    finally:
        inside(home, branch, "pkill -f swap.sh; true")
        subprocess.run(["rm", "-rf", marker], check=True)


def test_a_user_has_what_the_user_may_have(person: Person, tmp_path: Path) -> None:
    """A let-in user reads and writes as themselves, on both sides; nothing of other users' sessions."""
    with open_home("copying") as home:
        home.must("setup", "--user", person.name)
        home.must("shell", "roots", "-d", "--user", "root", "--cwd", "/srv")
        home.must("exec", "-b", "roots", "--", "echo secret > /srv/f")
        home.must("checkpoint", "roots-cp", "-b", "roots", "--tier", "files")
        for name in ("roots", "roots-cp"):
            refused(person.can(home, "cat", f"{name}:/srv/f"), "it is root's")
            refused(person.can(home, "cp", f"{name}:/srv/f", "/tmp/x"), "it is root's")
            refused(person.can(home, "cp", "/etc/hostname", f"{name}:/srv/f"), "it is root's")
        succeeds(person.can(home, "shell", "mine", "-d", "--cwd", str(person.home)))
        succeeds(person.can(home, "exec", "-b", "mine", "--", "echo own > own; mkdir -p sub; echo 1 > sub/1"))
        succeeds(person.can(home, "checkpoint", "mine-cp", "-b", "mine", "--tier", "files"))
        for name in ("mine", "mine-cp"):
            assert succeeds(person.can(home, "cat", f"{name}:own")) == "own\n"
            done = person.can(home, "cat", f"{name}:/etc/shadow")
            assert (done.returncode, done.stdout) == (3, "")
            assert f"Permission denied\n  next: {READABLE}" in done.stderr
            assert succeeds(person.can(home, "cp", f"{name}:sub", f"copy-{name}", cwd=str(person.home))) == ""
            assert (person.home / f"copy-{name}/1").stat().st_uid == person.uid
            assert home.must("cat", f"{name}:own").stdout == "own\n"  # root may
        (tmp_path / "roots").write_text("root's")
        (tmp_path / "roots").chmod(0o600)
        tmp_path.chmod(0o755)
        done = person.can(home, "cp", str(tmp_path / "roots"), "mine:stolen")
        assert (done.returncode, "Permission denied" in done.stderr) == (125, True)
        assert person.can(home, "cp", "mine:own", "/etc/waypoint-test").returncode == 125
        assert not Path("/etc/waypoint-test").exists()
        done = person.can(home, "cp", "/etc/hostname", "mine:/etc/hostname")
        assert (done.returncode, "Permission denied: .waypoint-cp-" in done.stderr) == (3, True), done.stderr
        assert f"next: {WRITABLE}" in done.stderr
        succeeds(person.can(home, "cp", "/etc/hostname", "mine:in"))
        assert (
            home.must("exec", "-b", "mine", "--user", person.name, "--", "stat -c %U in").stdout == f"{person.name}\n"
        )


def test_a_daemon_that_is_killed_leaves_no_half_file(tmp_path: Path) -> None:
    pauses, files = Pauses(tmp_path), tmp_path / "files"
    files.mkdir()
    (files / "large").write_bytes(os.urandom(8 << 20))
    (files / "to").write_text("before")

    def is_broken_off(copying: "subprocess.Popen[bytes]") -> None:
        os.kill(daemon_pid(home), signal.SIGKILL)
        out, err = copying.communicate(timeout=PATIENCE_S)
        assert (copying.returncode, out) == (125, b""), err
        assert b"the daemon has gone" in err
        assert b"\n  next: try again" in err

    def stops_at_second(armed: Armed, step: CopyStep) -> None:
        assert armed.wait() == step
        armed.arm(step)
        armed.go_on()
        assert armed.wait() == step

    with pauses.open_home("killed") as home:
        home.must("shell", "main", "-d", "--user", "root", "--cwd", "/srv")
        home.must("exec", "--", "echo before > there")
        put, get = ("cp", str(files / "large"), "main:there"), ("cp", "main:large", str(files / "to"))
        with pauses.armed(CopyStep.TAKEN) as armed, home.background(*put) as copying:
            stops_at_second(armed, CopyStep.TAKEN)
            is_broken_off(copying)
        assert home.must("cat", "main:there").stdout == "before\n"
        assert home.must("exec", "--", "ls -A /srv | grep -c waypoint-cp; true").stdout == "0\n"
        home.must("cp", str(files / "large"), "main:large")
        with pauses.armed(CopyStep.READ) as armed, home.background(*get) as copying:
            stops_at_second(armed, CopyStep.READ)
            wait_until(lambda: written(copying.pid) > 1 << 17, "a part of it is there")
            is_broken_off(copying)
        assert (files / "to").read_text() == "before"
        assert {path.name for path in files.iterdir()} == {"large", "to"}
        home.must(*get)
        assert (files / "to").read_bytes() == (files / "large").read_bytes()


def written(pid: int) -> int:
    """How many bytes the process has written so far."""
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["wchar"])


def test_the_sdk_reads_and_copies(home: Home, branch: str, tmp_path: Path) -> None:
    files = Client(home.path).files
    assert b"".join(files.read(branch, "a")) == b"a\0\xffb"
    assert files.copy_from(branch, b"d/n\xff", tmp_path / "n").entries == 1
    copied = files.copy_to(tmp_path / "n", branch, "n")
    assert (copied.entries, copied.size_bytes, copied.left_out) == (1, 1, [])
    with pytest.raises(UsageProblem, match="it is a folder"):
        list(files.read(branch, "d"))
    for parcel in (b"Ewhat is this?", encode(ParcelItem("x", "folder"))):  # no record; one without an end
        with contextlib.closing(FileChannel(files.home, branch, "put", b"x")) as channel:
            with pytest.raises(UsageProblem, match="is no parcel") as refused_it:
                channel.send(iter([parcel]))
            assert refused_it.value.next_step == SEND_AS
    assert files.copy_to(tmp_path / "n", branch, "x").entries == 1
