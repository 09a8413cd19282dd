"""Files of captures and sessions: `cp`, `cat`, `ls`, `mount`."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.collecting import collecting
from tests.homes import Home
from tests.session.let_in import refused, succeeds
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

MAKE = """mkdir -p /srv/kept/in; cd /srv/kept; echo content > in/file
ln -s /srv/kept/in/file absolute; ln -s in relative; ln -s /etc/shadow out
head -c 3000000 /dev/urandom > large; mkfifo pipe; touch $'\\xff'; chmod 4755 in/file"""


@pytest.fixture(scope="module")
def kept(home: Home) -> str:
    """A checkpoint with files; the session of the branch `main` has changed one of them since."""
    home.must("shell", "main", "-d")
    home.must("exec", "--", MAKE)
    home.must("checkpoint", "kept")
    home.must("exec", "--", "echo later > /srv/kept/in/file; echo /srv/kept/in/file")
    return "kept"


def test_a_file_of_a_capture_and_of_a_live_session_is_printed(home: Home, kept: str) -> None:
    assert home.must("cat", f"{kept}:/srv/kept/in/file").stdout == "content\n"
    assert home.must("cat", f"{kept}:/srv/kept/absolute").stdout == "content\n", "links are followed in the session"
    assert home.must("cat", f"{kept}:/srv/kept/relative/file").stdout == "content\n"
    assert home.must("cat", "main:/srv/kept/in/file").stdout == "later\n"
    large = home.must("run", "-b", "main", "--", "cat", "/srv/kept/large").raw
    assert home.must("cat", f"{kept}:/srv/kept/large").raw == large


def test_a_folder_is_listed(home: Home, client: Client, kept: str) -> None:
    names = home.must("ls", f"{kept}:/srv/kept").stdout.splitlines()
    assert names == ["absolute", "in", "large", "out", "pipe", "relative", r"\xff"]
    found = {one.name: one for one in client.files(kept).list("/srv/kept")}
    assert (found["absolute"].type, found["absolute"].target) == ("link", "/srv/kept/in/file")
    assert (found["pipe"].type, found["in"].type, found["large"].size_bytes) == ("fifo", "folder", 3_000_000)
    assert "\n4755    0:0   8 B  " in home.must("ls", "-l", f"{kept}:/srv/kept/in").stdout


def test_files_are_copied_to_the_machine(home: Home, kept: str, tmp_path: Path) -> None:
    home.must("cp", f"{kept}:/srv/kept", str(tmp_path / "new"))
    home.must("cp", f"{kept}:/srv/kept/in", str(tmp_path))
    assert (tmp_path / "new/in/file").read_text() == (tmp_path / "in/file").read_text() == "content\n"
    assert (tmp_path / "new/out").readlink() == Path("/etc/shadow"), "links are copied as links"
    assert (tmp_path / "new/in/file").stat().st_mode & 0o6000 == 0
    (tmp_path / "old").write_text("old")
    home.must("cp", f"{kept}:/srv/kept/in/file", str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "content\n"
    done = home.cli("cp", f"{kept}:/srv/kept/in", str(tmp_path))
    assert (done.code, "it exists" in done.stderr) == (4, True), done.stderr
    with tarfile.open(fileobj=BytesIO(home.must("cp", f"{kept}:/srv/kept/in", "-").raw)) as archive:
        assert archive.getnames() == ["./in", "./in/file"]
    assert sorted(os.listdir(tmp_path)) == ["in", "new", "old"], "nothing else is left"


def test_files_are_copied_into_a_running_session(home: Home, client: Client, kept: str, tmp_path: Path) -> None:
    (tmp_path / "folder/below").mkdir(parents=True)
    (tmp_path / "folder/below/file").write_text("new\n")
    home.must("cp", str(tmp_path / "folder"), "main:/srv/kept")
    home.must("cp", str(tmp_path / "folder"), "main:/srv/kept/renamed")
    assert home.must("cat", "main:/srv/kept/folder/below/file").stdout == "new\n"
    assert home.must("cat", "main:/srv/kept/renamed/below/file").stdout == "new\n"
    archive = subprocess.run(["tar", "-cf", "-", "-C", tmp_path, "folder"], check=True, capture_output=True).stdout
    home.must("cp", "-", "main:/tmp", stdin=archive)
    files = client.session("main").files
    assert files.read("/tmp/folder/below/file") == b"new\n"
    files.write("/tmp/written", b"\0\xff")
    assert files.read("/tmp/written") == b"\0\xff"
    home.must("run", "-b", "main", "--", "chmod", "750", "/tmp/written")
    files.write("/tmp/written", b"again")
    assert [(one.mode, one.size_bytes) for one in files.list("/tmp/written")] == [("750", 5)]
    (tmp_path / "folder/below/file").write_text("newer\n")
    home.must("cp", str(tmp_path / "folder"), "main:/srv/kept")
    assert home.must("cat", "main:/srv/kept/folder/below/file").stdout == "newer\n", "folders are merged"
    home.must("exec", "--", "mkdir /srv/taken; touch /srv/taken/name")
    done = home.cli("cp", str(tmp_path / "folder"), "main:/srv/taken/name")
    assert (done.code, "cannot overwrite" in done.stderr) == (125, True), done.stderr
    assert home.must("run", "-b", "main", "--", "ls", "-A", "/srv/taken").stdout == "name\n", "nothing else is left"
    done = home.cli("cp", str(tmp_path / "folder"), f"{kept}:/srv")
    assert done.code != 0, "a capture cannot be written"


def test_wrong_requests_are_refused(home: Home, kept: str) -> None:
    with collecting() as row:
        for words, code, said in (
            (("cat", f"{kept}:/nope"), 2, "No such file or directory"),
            (("cat", f"{kept}:/srv"), 125, "it is not a regular file"),
            (("cat", f"{kept}:/srv/kept/pipe"), 125, "it is not a regular file"),
            (("cat", f"{kept}:srv"), 2, "the path srv is not absolute"),
            (("cat", "/srv"), 2, "it is not NAME:PATH"),
            (("ls", "nope:/"), 2, "nothing has this name"),
            (("cp", "a", "b"), 2, "one of them must be NAME:PATH"),
            (("mount", kept, "/no/such/folder"), 2, "there is no such folder"),
            (("umount", "/srv"), 2, "no capture is mounted there"),
        ):
            with row(words):
                done = home.cli(*words)
                assert (done.code, said in done.stderr) == (code, True), done.stderr


def test_umount_ends_only_what_mount_has_made(home: Home, kept: str, tmp_path: Path) -> None:
    (tmp_path / "folder/disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder")
    subprocess.run(["mount", "-t", "tmpfs", "own", tmp_path / "folder/disk"], check=True)
    try:
        done = home.cli("mount", kept, str(tmp_path / "folder"))
        assert (done.code, "something is mounted in this folder" in done.stderr) == (4, True), done.stderr
    finally:
        subprocess.run(["umount", tmp_path / "folder/disk"], check=True)
    home.must("mount", kept, str(tmp_path / "link"))
    home.must("umount", str(tmp_path / "link"))
    assert os.listdir(tmp_path / "folder") == ["disk"]
    home.must("checkpoint", "brief", "--anew")
    capture = home.must("show", "brief", "--json").json()["capture"]
    home.must("checkpoint", "later", "--anew")
    home.must("mount", "brief", str(tmp_path / "link"))
    home.must("rm", "brief")
    subprocess.run(["umount", "-R", tmp_path / "folder"], check=True)
    removed = home.must("gc", "--keep-operations", "0", "--json").json()["removed"]
    assert capture in [one["capture"] for one in removed]


def test_a_mounted_capture_is_read_only_and_outlives_the_daemon(home: Home, kept: str, tmp_path: Path) -> None:
    home.must("mount", kept, str(tmp_path))
    try:
        assert (tmp_path / "srv/kept/in/file").read_text() == "content\n"
        assert os.statvfs(tmp_path).f_flag & (os.ST_RDONLY | os.ST_NOSUID) == os.ST_RDONLY | os.ST_NOSUID
        capture = home.must("show", kept, "--json").json()["capture"]
        home.must("rm", kept)
        home.must("daemon", "stop")
        home.must("exec", "-b", "main", "--", "true")
        removed = home.must("gc", "--keep-operations", "0", "--json").json()["removed"]
        assert capture not in [one["capture"] for one in removed]
        assert (tmp_path / "srv/kept/in/file").read_text() == "content\n"
        with open(tmp_path / "srv/kept/in/file"):
            done = home.cli("umount", str(tmp_path))
            assert (done.code, "it is in use" in done.stderr) == (4, True), done.stderr
    finally:
        home.must("umount", str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_users_read_only_what_they_may_read(let_in: Home, person: Person, tmp_path: Path) -> None:
    succeeds(person.can(let_in, "shell", "own", "-d"))
    succeeds(person.can(let_in, "exec", "-b", "own", "--", "echo x > ~/file"))
    done = person.can(let_in, "cat", f"own:{person.home}/file")
    assert done.stdout == "x\n", done.stderr
    refused(person.can(let_in, "cat", "own:/etc/shadow"), "Permission denied")
    succeeds(person.can(let_in, "exec", "-b", "own", "--", f"cd; mkdir many; cd many; touch {'n' * 150}{{1..7000}}"))
    succeeds(person.can(let_in, "exec", "-b", "own", "--", "chmod 0 ~/many/*"))
    done = person.can(let_in, "cp", f"own:{person.home}/many", "-")
    assert done.returncode != 0, "tar reports each of them, and must not wait until its messages are read"
    present = sorted(os.listdir(person.home))
    done = person.can(let_in, "cp", f"own:{person.home}/many", f"{person.home}/copy")
    assert (done.returncode, "Cannot open: Permission denied" in done.stderr) == (125, True), done.stderr
    assert sorted(os.listdir(person.home)) == present, "no part of a copy is left"
    refused(person.can(let_in, "mount", "own", str(person.home)), "only root may change the machine's mounts")
    let_in.must("shell", "roots", "-d", "--user", "root")
    for words in (("cat", "roots:/etc/hostname"), ("ls", "roots:/"), ("cp", "roots:/etc/hostname", str(person.home))):
        refused(person.can(let_in, *words), "it belongs to root")
