"""Unusual files are restored exactly, in a fork and in place, even after the session has changed them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import WAYS, Mood, Way, in_process, new_name, restore_as, started
from tests.acceptance.sessions import OF_THE_BASE, OWN_MOUNT, make_host_folder
from tests.homes import Home, open_home
from waypoint.client import Client
from waypoint.client.sdk import Session
from waypoint.model.errors import CannotCapture

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

# Changes files in the folder $1 of the host, which `base` has filled, and makes new ones.
MAKE = r"""
cd "$1"
rm base-file; rm -r opaque; mkdir opaque; echo new >opaque/only
mv renamed-file file-with-a-new-name; mv renamed-folder folder-with-a-new-name; mv moved opaque/moved
ln linked other-name; echo through the other name >>other-name
echo content >touched; touch -d @1234567890 touched; chmod 4751 touched; chown 12:34 touched
python3 - <<'END'
import os, socket
os.setxattr("linked", "user.colour", b"\0green\xff")
with open("sparse", "wb") as file:
    file.truncate(50 << 20)
    file.seek(30 << 20)
    file.write(b"in the middle")
os.mkfifo("fifo", 0o640)
socket.socket(socket.AF_UNIX).bind("socket")
for name in (b"new\nline", b"not-\xff\xfe-utf8", b" blank ", b"-dash", b"x" * 255):
    open(name, "wb").write(name)
os.symlink("no/such/place", "dangling")
os.symlink("/etc/passwd", "absolute")
os.makedirs("/".join(["deep"] * 60))
open("/".join(["deep"] * 60) + "/file", "w").write("deep down")
os.mkdir("empty", 0o1711)
END
"""
# Lists kind, mode, owner, time, sparse blocks, content, links and extended attributes of every file.
LIST = r"""
cd "$1"; python3 - <<'END'
import hashlib, os, stat
for folder, folders, files in os.walk(b"."):
    folders.sort()
    for name in sorted(folders + files) + [b"."]:
        path = folder + b"/" + name
        of = os.lstat(path)
        facts = [oct(of.st_mode), of.st_uid, of.st_gid, of.st_mtime_ns]
        if stat.S_ISREG(of.st_mode):
            digest = hashlib.sha256(open(path, "rb").read()).hexdigest()[:16]
            facts += [of.st_nlink, of.st_size, "sparse" if of.st_blocks * 512 < of.st_size // 4 else "full", digest]
        if stat.S_ISLNK(of.st_mode):
            facts.append(os.readlink(path))
        else:
            facts += [(name, os.getxattr(path, name)) for name in os.listxattr(path) if name.startswith("user.")]
        print(path, *facts)
os.stat("linked").st_ino == os.stat("other-name").st_ino or print("two files")
END
"""
SPOIL = r"""
cd "$1"; rm -rf -- * ; echo back >base-file; mkdir renamed-folder; echo other >renamed-file; touch opaque linked sparse
"""


class Made:
    """The list of files from before the capture, and the two restored sessions."""

    def __init__(self, before: str, sessions: dict[Way, Session], place: Path) -> None:
        self.before = before
        self.sessions = sessions
        self.place = place


def base(place: Path) -> None:
    """Make the host's files in the folder."""
    for folder in ("opaque/inner", "renamed-folder/inner", "moved"):
        (place / folder).mkdir(parents=True)
        (place / folder / "of-the-base").write_text(folder)
    for name in ("base-file", "renamed-file", "linked"):
        (place / name).write_text(f"{name} of the base\n")


@pytest.fixture(scope="module", params=[OF_THE_BASE, pytest.param(OWN_MOUNT, marks=pytest.mark.soak(part="matrix"))])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of the host with files: in the root file system, or a separate mount."""
    with make_host_folder(request.param) as folder:
        base(folder)
        yield folder


@pytest.fixture(scope="module")
def made(place: Path) -> Iterator[Made]:
    mood: Mood = "quiet" if place.is_mount() else "busy"
    with open_home("acc") as home, started(home, "root", mood) as session:
        on_host = sorted(path.relative_to(place) for path in place.rglob("*"))
        run(session, MAKE, place)
        before = run(session, LIST, place)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        run(session, SPOIL, place)
        fork = restore_as(home, session, checkpoint, "fork")
        yield Made(before, {"fork": fork, "restore": restore_as(home, session, checkpoint, "restore")}, place)
        assert sorted(path.relative_to(place) for path in place.rglob("*")) == on_host


def run(session: Session, script: str, place: Path) -> str:
    done = session.run("sh", "-ec", script, "sh", str(place))
    assert (done.exit, done.stderr) == (0, b"")
    return done.stdout.decode()


@pytest.mark.parametrize("way", WAYS)
def test_every_file_is_restored_exactly(made: Made, way: Way) -> None:
    assert len(made.before.splitlines()) > 80
    assert "two files" not in made.before
    assert run(made.sessions[way], LIST, made.place).splitlines() == made.before.splitlines()


@pytest.mark.parametrize("way", WAYS)
def test_removed_files_stay_removed_and_their_names_can_be_reused(made: Made, way: Way) -> None:
    session, place = made.sessions[way], made.place
    assert in_process(session, f"cd {place}; ls base-file renamed-file renamed-folder moved 2>/dev/null || :") == ""
    assert in_process(session, f"ls {place}/opaque; cat {place}/folder-with-a-new-name/inner/of-the-base") == (
        "moved\nonly\nrenamed-folder/inner"
    )
    in_process(session, f"cd {place}; echo once more >base-file; mkdir renamed-folder")
    assert in_process(session, f"cd {place}; cat base-file; ls renamed-folder; rm -r base-file renamed-folder") == (
        "once more\n"
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_bind_stays_the_folder_of_the_host(home: Home, tmp_path: Path, way: Way) -> None:
    with started(home, "root") as plain:
        branch = f"{plain.branch}-bound"
        session = Client(home.path).start(branch, user="root", binds=[f"{tmp_path}:/shared", f"{tmp_path}:/fixed:ro"])
        session.exec("exec 5<>/shared/open; echo before >&5")
        session.checkpoint(f"{branch}.1", tier="live")
        session.exec("touch /shared/made")
        copy = restore_as(home, session, f"{branch}.1", way)
        copy.exec("echo after >&5")
        assert (tmp_path / "open").read_text() == "before\nafter\n"
        assert copy.exec("touch /fixed/no").exit != 0
        (tmp_path / "of-the-host").touch()
        assert in_process(copy, "ls /shared; ls /fixed").split() == ["made", "of-the-host", "open"] * 2


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_open_file_of_the_host_is_refused(home: Home, tmp_path: Path, way: Way) -> None:
    """Waypoint does not protect bound files from changes."""
    with started(home, "root") as plain:
        branch = f"{plain.branch}-bound"
        session = Client(home.path).start(branch, user="root", binds=[f"{tmp_path}:/shared"])
        session.exec("exec 5>/shared/open; echo before >&5")
        session.checkpoint(f"{branch}.1", tier="live")
        session.exec("echo between >&5")
        with pytest.raises(CannotCapture, match="/shared/open, which a process had open, has changed"):
            restore_as(home, session, f"{branch}.1", way)
        session.exec("echo after >&5")
        assert (tmp_path / "open").read_text() == "before\nbetween\nafter\n"


@pytest.mark.parametrize("way", WAYS)
def test_an_open_file_that_was_renamed_by_a_link_is_restored(home: Home, way: Way) -> None:
    """CRIU makes a name for this file at the end of the dump, while Waypoint already captures the files."""
    with started(home, "root") as session:
        session.exec("for number in {1..30}; do sleep 100000 & done")
        session.exec("(echo kept >one; ln one other; exec 8<>one; rm one; exec sleep 100000) & last=$!")
        session.exec("until [[ $(cat /proc/$last/comm) = sleep ]]; do :; done")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        session.exec("rm other")
        back = restore_as(home, session, checkpoint, way)
        assert back.exec("cat /proc/$last/fd/8; echo more >>/proc/$last/fd/8").output == b"kept\n"
        assert in_process(back, "cat /tmp/other; ls /tmp/one /tmp/link_remap* 2>/dev/null || :") == "kept\nmore\n"
