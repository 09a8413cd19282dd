"""Folders and files that were removed while processes hold them: the processes come back all the same."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.moments import WAYS, Way, alone, brought_back, new_name, says, started
from tests.acceptance.sessions import OF_THE_BASE, OWN_MOUNT, ground_of
from tests.homes import Home, open_home
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("criu"),
]

_NUMBERS = itertools.count(1)
# Where the folder lies that will be removed, and what the session has done to it before.
KINDS = ("of the base", "of the base and changed", "new")
# What a process finds out about the folder that it stands in, which has no name.
ABOUT = "ls -A; stat -L -c '%F %a %u %h' /proc/self/cwd; readlink /proc/self/cwd | grep -o '(deleted)'"


@pytest.fixture(scope="module", params=[OF_THE_BASE, pytest.param(OWN_MOUNT, marks=pytest.mark.soak(part="matrix"))])
def ground(request: pytest.FixtureRequest) -> Iterator[Path]:
    with ground_of(request.param) as place:
        if request.param == OWN_MOUNT:
            # Numbers its files from 1 on. An overlay does so with its folders, and CRIU takes one for the other.
            for number in range(1000):
                (place / str(number)).touch()
                (place / str(number)).unlink()
        yield place


@pytest.fixture(scope="module")
def home(ground: Path) -> Iterator[Home]:
    """Opened when the mount is there."""
    with open_home("removed") as made:
        yield made


def make_folder(ground: Path, kind: str) -> tuple[Path, str]:
    """A path for a folder of this kind, and what the session does so that the folder is there."""
    folder = ground / f"folder-{next(_NUMBERS)}"
    if kind == "new":
        return folder, f"mkdir {folder}; echo content >{folder}/file"
    folder.mkdir()
    (folder / "file").write_text("content\n")
    return folder, f"echo more >{folder}/more" if kind == "of the base and changed" else ":"


def listing(session: Session, ground: Path) -> str:
    return alone(session, f"find {ground} | sort")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shell_and_a_job_go_on_in_a_folder_that_was_removed(home: Home, ground: Path, kind: str, way: Way) -> None:
    folder, make = make_folder(ground, kind)
    with started(home, "root") as session:
        says(session, f"{make}; chmod 2751 {folder}; cd {folder}; kept=yes")
        session.exec("sleep 1000 &")
        session.exec(f"rm -r {folder}")
        before = listing(session, ground)
        about = says(session, ABOUT)
        assert about.startswith("directory 2751 0 ")
        for _again in range(2):  # what was restored is captured and restored once more
            checkpoint = new_name(session)
            session.checkpoint(checkpoint, tier="live")
            session = brought_back(home, session, checkpoint, way)
            assert says(session, "echo $kept; jobs -r | wc -l") == "yes\n1\n"
            assert says(session, ABOUT).split()[:3] == about.split()[:3]
            assert says(session, ABOUT).endswith("(deleted)\n")
            assert session.exec("touch file").exit == 1
            assert listing(session, ground) == before
        assert says(session, f"cd ..; pwd -P; mkdir {folder}; cd {folder}; pwd -P") == f"{ground}\n{folder}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_folders_that_were_removed_stay_open(home: Home, ground: Path, kind: str) -> None:
    folder, make = make_folder(ground, kind)
    with started(home, "root") as session:
        says(session, f"{make}; mkdir -p {folder}/a/b")
        session.exec(f"exec 7<{folder} 8<{folder}/a/b 9<>{folder}/file; rm -r {folder}")
        before = listing(session, ground)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = brought_back(home, session, checkpoint, way)
            assert says(back, "ls -A /proc/$$/fd/7/ /proc/$$/fd/8/") == "/proc/$$/fd/7/:\n\n/proc/$$/fd/8/:\n".replace(
                "$$", says(back, "echo $$").strip()
            )
            assert says(back, "read -r word <&9; echo $word; echo written >&9; cat /proc/$$/fd/9") == (
                "content\ncontent\nwritten\n"
            )
            assert listing(back, ground) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_removed_folder_may_be_in_use_again(home: Home, ground: Path, kind: str) -> None:
    """`rm -r build; mkdir build`, with a server in the old one and a shell in the new one; once more; and as a file."""
    folder, make = make_folder(ground, kind)
    with started(home, "root") as session:
        says(session, f"{make}; cd {folder}")
        session.exec("sleep 1000 &")
        session.exec(f"cd /; rm -r {folder}; mkdir {folder}; cd {folder}")
        session.exec("sleep 1000 &")
        session.exec(f"cd /; rm -r {folder}; echo new >{folder}; kept=yes")
        before = listing(session, ground)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = brought_back(home, session, checkpoint, way)
            assert says(back, f"echo $kept; jobs -r | wc -l; cat {folder}") == "yes\n2\nnew\n"
            assert says(back, "for job in $(jobs -p); do readlink /proc/$job/cwd; done").count("(deleted)") == 2
            assert listing(back, ground) == before


def test_the_folders_above_may_be_gone_or_links_now(home: Home, ground: Path) -> None:
    folder, make = make_folder(ground, "of the base")
    for name in ("gone", "linked"):
        (folder / name / "inner").mkdir(parents=True)
    with started(home, "root") as session:
        says(session, f"{make}; cd {folder}/gone/inner")
        session.exec("sleep 1000 &")
        session.exec(f"cd {folder}/linked/inner; kept=yes; rm -r {folder}/gone {folder}/linked")
        session.exec(f"ln -s /etc {folder}/linked")
        before = listing(session, ground), alone(session, "ls /etc")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = brought_back(home, session, checkpoint, way)
            assert says(back, "echo $kept; jobs -r | wc -l") == "yes\n1\n"
            assert (listing(back, ground), alone(back, "ls /etc")) == before


def test_the_folder_in_which_a_session_was_started_may_be_removed(home: Home, ground: Path) -> None:
    """The README's own example: a restore keeps what it replaces, and `undo` brings all of that back."""
    folder, _ = make_folder(ground, "of the base")
    client = Client(home.path)
    session = client.start(f"start-{folder.name}", user="root", cwd=str(folder))
    try:
        assert says(session, 'pwd; readlink /proc/1/cwd; [ -z "$OLDPWD" ]') == f"{folder}\n/\n"
        session.exec("kept=early; sleep 1000 &")
        session.checkpoint(f"{session.branch}.a", tier="live")
        session.exec("kept=late; sleep 1000 &")
        session.exec(f"rm -rf {folder}")
        session.restore(f"{session.branch}.a")
        assert says(session, "echo $kept; jobs -r | wc -l; cat file") == "early\n1\ncontent\n"
        home.must("undo")
        assert (
            says(session, f"echo $kept; jobs -r | wc -l; ls {ground} | grep -c {folder.name}; true") == "late\n2\n0\n"
        )
    finally:
        session.stop(discard=True)


def test_a_folder_whose_name_says_that_it_was_removed_keeps_its_name(home: Home, ground: Path) -> None:
    folder, _ = make_folder(ground, "of the base")
    named = folder.rename(folder.with_name(f"{folder.name} (deleted)"))
    with started(home, "root") as session:
        says(session, f"cd '{named}'")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        back = brought_back(home, session, checkpoint, "fork")
        assert says(back, "pwd -P; cat file") == f"{named}\ncontent\n"
