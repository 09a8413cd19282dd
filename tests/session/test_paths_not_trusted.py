"""A session's root replaces mounts and folders by links; no process outside of the session follows them.

The tests do nothing harmful: they only open a file, or write it back unchanged. A session with mapped ids would be
protected by these ids, too, so the tests also run with the host's ids.
"""

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import facts, inside, mounted
from tests.collecting import collecting
from tests.homes import Completed, Home, open_home
from tests.session.hostile import as_command, replaced
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import procfs

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

NUMBERS = itertools.count(1)
SECRET = "of the host"
# In a proc file system `net` is a link, so the path leads elsewhere as soon as a proc is mounted at `q`.
CHANGING_PATH = "os.makedirs('q/net'); os.symlink('q/net/..', place)"
AS_IN_PROC = "os.makedirs('q'); os.symlink('/q', place)"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A second mount of the host. Each session has an overlay of it."""
    place = tmp_path_factory.mktemp("paths") / "second"
    place.mkdir()
    with mounted(place, "-t", "tmpfs", "none"):
        yield place


@pytest.fixture(scope="module", params=["shifted", pytest.param("host", marks=pytest.mark.soak(part="matrix"))])
def place(request: pytest.FixtureRequest, second: Path) -> Iterator[Home]:
    with open_home("paths", host_ids=request.param == "host") as home:
        yield home


@contextlib.contextmanager
def begun(home: Home, *options: str) -> Iterator[str]:
    """Start a session of root on a new branch that may make mount namespaces, and yield the branch's name."""
    branch = f"b{next(NUMBERS)}"
    home.must("shell", branch, "-d", "--user", "root", "--allow", "userns", *options)
    try:
        yield branch
    finally:
        home.cli("stop", branch, "--discard")


def run(home: Home, branch: str, program: str) -> None:
    """Run the Python `program` in the session without its shell, which may hang without /dev."""
    home.must("run", "-b", branch, "--", "sh", "-c", as_command(program))


def link_to(target: Path) -> str:
    return f"os.symlink({str(target)!r}, place)"


def refused(done: Completed, place: str) -> str:
    """Check the error, and return the capture or branch whose files it advises to restore into another session."""
    assert done.code == 4, done
    assert f"cannot mount a file system of the session at {place}: " in done.stderr
    step = r"have its files in another session: waypoint shell NEW -d; waypoint restore (\S+) -b NEW --only files"
    found = re.search(rf"\n  next: {step}\n", done.stderr)
    assert found, done
    return found[1]


@pytest.mark.parametrize("made", [CHANGING_PATH, AS_IN_PROC, "pass"], ids=["changing", "link", "missing"])
def test_a_session_is_not_started_if_its_proc_was_replaced(place: Home, made: str) -> None:
    with begun(place) as branch:
        run(place, branch, replaced("proc", by=made))
        inside(place, branch, "echo kept >/srv/kept")
        place.must("stop", "--files", branch)
        name = refused(place.cli("shell", branch, "-d"), "/proc")
        with begun(place) as other:  # follows the advice
            place.must("restore", name, "-b", other, "--only", "files")
            assert inside(place, other, "cat /srv/kept; test -e /proc/1/stat && echo there") == "kept\nthere\n"


@pytest.mark.parametrize("made", [CHANGING_PATH, AS_IN_PROC], ids=["changing", "link"])
def test_forks_and_restores_are_refused_if_proc_was_replaced(place: Home, made: str) -> None:
    with begun(place) as branch:
        run(place, branch, replaced("proc", by=made))
        assert place.cli("fork", branch, f"{branch}-2").code != 0
        place.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
        before = facts(place, branch)["id"]
        refused(place.cli("restore", f"{branch}-cp", "-b", branch, "--lose-processes"), "/proc")
        assert [(one["branch"], one["id"]) for one in place.must("ps", "--json").json()] == [(branch, before)]


def test_forks_and_restores_do_not_mount_on_a_link_in_place_of_a_mount(place: Home, second: Path) -> None:
    with begun(place) as branch:
        run(place, branch, replaced(str(second).lstrip("/"), by=link_to(place.runtime / "kit")))
        before = facts(place, branch)["id"]
        refused(place.cli("fork", branch, f"{branch}-2"), str(second))
        place.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "live")
        refused(place.cli("restore", f"{branch}-cp", "-b", branch), str(second))
        assert [(one["branch"], one["id"]) for one in place.must("ps", "--json").json()] == [(branch, before)]
    with begun(place) as other:  # its devices come from `kit`, so nothing was mounted over it
        assert inside(place, other, "stat -f -c %T /dev; test ! -e /dev/kmsg && echo none") == "tmpfs\nnone\n"


def test_a_link_cannot_change_where_devices_come_from(place: Home, second: Path) -> None:
    """A mount that followed the link would hide the folder `kit`, from which each session gets its /dev."""
    with begun(place) as branch:
        names = "dev dev-0 dev-$(awk 'NR == 1 {print $2}' /proc/self/uid_map)"
        skeletons = "$(grep -o 'skeleton-[0-9a-f]*' /proc/self/mountinfo | sort -u)"
        inside(
            place, branch, f"cd {second}; for name in {names}; do ln -sfn /dev $name; done; mkdir layers {skeletons}"
        )
        inside(place, branch, "cd /")
        run(place, branch, replaced(str(second).lstrip("/"), by=link_to(place.runtime / "kit")))
        place.must("stop", "--files", branch)
        done = place.must("shell", branch, "-d")
        assert f"degraded: {second} (the session has changed its mount point: its changes wait)\n" in done.stderr
        assert inside(place, branch, "stat -f -c %T /dev; test ! -e /dev/kmsg && echo none") == "tmpfs\nnone\n"


def test_a_fork_is_refused_if_sys_was_replaced_by_a_link(place: Home, tmp_path: Path) -> None:
    with begun(place) as branch:
        run(place, branch, replaced("sys", by=link_to(tmp_path)))
        assert place.cli("fork", branch, f"{branch}-2").code != 0
        assert [one["branch"] for one in place.must("ps", "--json").json()] == [branch]


def test_files_are_not_restored_through_a_link(place: Home, second: Path, tmp_path: Path) -> None:
    with begun(place) as branch:
        inside(place, branch, f"cp /usr/bin/true {second}/true; chmod 4755 {second}/true")
        run(place, branch, replaced(str(second).lstrip("/"), by=link_to(tmp_path)))
        place.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
        inside(place, branch, f"rm {second}-was/true; echo later >/srv/later")
        done = place.cli("restore", f"{branch}-cp", "-b", branch, "--only", "files")
        assert list(tmp_path.iterdir()) == []
        assert done.code != 0
        assert "the mount point was removed or replaced: openat2: Too many levels of symbolic links" in done.stderr
        assert inside(place, branch, "cat /srv/later") == "later\n"  # the restore has changed nothing


def test_shared_memory_is_not_copied_through_a_link(place: Home, tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm/secret").write_text(SECRET)
    with begun(place) as branch:
        run(place, branch, replaced("dev", by=link_to(tmp_path)))
        done = place.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
        assert list((place.path / "hot").glob("*/shm/secret")) == []
        assert "/dev/shm: its files are not in the capture" in done.stderr


def test_a_link_above_a_restored_file_is_not_followed(place: Home) -> None:
    """This needs no replaced mount: from the daemon's mount point, a relative link leads to another folder."""
    secret = place.path / "secret"
    secret.write_text(SECRET)
    folder, up = "/usr/share/doc/bash", "/".join([".."] * 12)
    try:
        with begun(place) as branch:
            inside(place, branch, f"mkdir -p {place.path}; touch {folder}/secret {secret}")
            place.must("checkpoint", f"{branch}-folder", "-b", branch, "--tier", "files")
            inside(place, branch, f"rm -r {folder}; ln -s {up}{place.path} {folder}")
            place.must("checkpoint", f"{branch}-link", "-b", branch, "--tier", "files")
            place.must("restore", f"{branch}-folder", "-b", f"{branch}-2", "--only", "files")
            place.must("restore", f"{branch}-link", "-b", f"{branch}-2", "--only", "files")
            assert inside(place, f"{branch}-2", f"cat {secret}; readlink {folder}") == f"{up}{place.path}\n"
            place.must("stop", f"{branch}-2", "--discard")
    finally:
        secret.unlink()


def test_a_bind_does_not_follow_a_link_of_a_session(place: Home, tmp_path: Path) -> None:
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    (shared / "below").mkdir(parents=True)
    outside.mkdir()
    with begun(place, "--bind", f"{shared}:/shared", "--bind", f"{shared}/below:/below") as branch:
        inside(place, branch, f"mv /shared/below /shared/was; ln -s {outside} /shared/below")
        place.must("stop", "--files", branch)
        done = place.cli("shell", branch, "-d")
        assert done.code != 0
        assert f"{shared}/below" in done.stderr


SCRIPT = """#!/proc/self/exe
import os, sys
fd = os.open("/proc/self/exe", os.O_RDONLY)
found = os.fstat(fd)
said = []
for mode in ("ab", "r+b"):
    try:
        open("/proc/self/exe", mode).close()
        said.append("opened to be written")
    except OSError as error:
        said.append(error.strerror)
with open("/tmp/exe", "w") as file:
    print(found.st_dev, found.st_ino, *said, sep=":", file=file)
os.execv("/usr/bin/dash", ["/bin/sh", *sys.argv[1:]])
"""


def test_a_program_cannot_open_the_interpreter_of_the_daemon_as_its_own(place: Home) -> None:
    ours = os.stat(f"/proc/{place.must('daemon', 'status', '--json').json()['pid']}/exe")
    with collecting() as row:
        for way in ("shell", "run", "restore", "a user's shell", "a user's run"):
            with row(way), begun(place) as branch:
                new = "/usr/bin/sh.new"
                inside(place, branch, f"printf %s {shlex.quote(SCRIPT)} >{new}; chmod 755 {new}; mv {new} /usr/bin/sh")
                if way == "restore":
                    place.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
                    place.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
                elif way != "run":
                    place.must("stop", "--files", branch)
                    place.must("shell", branch, "-d", "--user", "nobody" if way.startswith("a user") else "root")
                if way.endswith("run"):
                    inside(place, branch, "rm -f /tmp/exe")
                    place.must("run", "-b", branch, "--", "true")
                device, inode, *said = inside(place, branch, "cat /tmp/exe").strip().split(":")
                assert (int(device), int(inode)) != (ours.st_dev, ours.st_ino)
                assert len(said) == 2
                assert "opened to be written" not in said


def test_processes_of_a_session_have_no_file_of_the_host_open(place: Home) -> None:
    """Each open file, program, current folder and root is on a mount of the session, or is a pipe."""
    with begun(place) as branch, place.background("run", "-b", branch, "--", "sleep", "1000"):
        inside(place, branch, "sleep 1000 &")
        place.must("fork", branch, f"{branch}-2")
        try:
            for name in (branch, f"{branch}-2"):
                (pid,) = (one["pid"] for one in place.must("ps", "--json").json() if one["branch"] == name)
                table = {mount.id for mount in mounts.read_mounts(pid)}
                assert {*Path(f"/proc/{pid}/fd").iterdir()} >= {Path(f"/proc/{pid}/fd/{number}") for number in range(4)}
                for process in _tree(pid):
                    _expect_held(Path(f"/proc/{process}"), table)
        finally:
            place.cli("stop", f"{branch}-2", "--discard")


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(ProcessLookupError):  # the process has ended
        for child in procfs.children(pid):
            yield from _tree(child)


def _expect_held(process: Path, table: set[int]) -> None:
    for link in (*process.glob("fd/*"), process / "exe", process / "cwd", process / "root"):
        try:
            if link.readlink().as_posix().startswith("pipe:"):
                continue
            fd = os.open(link, os.O_PATH)
        except FileNotFoundError:  # the file was closed, or the process has ended
            continue
        try:
            fields = Path(f"/proc/self/fdinfo/{fd}").read_text().split()
        finally:
            os.close(fd)
        assert int(fields[fields.index("mnt_id:") + 1]) in table, f"{link} is {link.readlink()}"
