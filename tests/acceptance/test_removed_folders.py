"""Processes that hold removed folders and files (as current folder, or open) are restored with them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import WAYS, Way, in_process, in_shell, new_name, restore_as, started
from tests.acceptance.sessions import OF_THE_BASE, OWN_MOUNT, make_host_folder
from tests.homes import Home, open_home
from waypoint.client import Client
from waypoint.client.sdk import Session

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("criu"),
]

_NUMBERS = itertools.count(1)
# The origin of the folder that will be removed.
KINDS = ("of the base", "of the base and changed", "new")
# Lists what a process can see of its current folder after that has been removed.
ABOUT = "ls -A; stat -L -c '%F %a %u %h' /proc/self/cwd; readlink /proc/self/cwd | grep -o '(deleted)'"


@pytest.fixture(scope="module", params=[OF_THE_BASE, pytest.param(OWN_MOUNT, marks=pytest.mark.soak(part="matrix"))])
def host_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with make_host_folder(request.param) as place:
        if request.param == OWN_MOUNT:
            # Use up the low inode numbers of the tmpfs: overlay folders have them too, which would confuse CRIU.
            for number in range(1000):
                (place / str(number)).touch()
                (place / str(number)).unlink()
        yield place


@pytest.fixture(scope="module")
def home(host_folder: Path) -> Iterator[Home]:
    """A home opened after the mount was made, so that its sessions see the mount."""
    with open_home("removed") as made:
        yield made


def make_folder(host_folder: Path, kind: str) -> tuple[Path, str]:
    """Return the path of a folder of this kind and the shell command by which the session makes or changes it."""
    folder = host_folder / f"folder-{next(_NUMBERS)}"
    if kind == "new":
        return folder, f"mkdir {folder}; echo content >{folder}/file"
    folder.mkdir()
    (folder / "file").write_text("content\n")
    return folder, f"echo more >{folder}/more" if kind == "of the base and changed" else ":"


def listing(session: Session, host_folder: Path) -> str:
    return in_process(session, f"find {host_folder} | sort")


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "fork") for kind in KINDS),
        (KINDS[0], "restore"),
        *(pytest.param(kind, "restore", marks=pytest.mark.soak(part="matrix")) for kind in KINDS[1:]),
    ],
)
def test_a_shell_and_a_job_continue_in_a_removed_folder(home: Home, host_folder: Path, kind: str, way: Way) -> None:
    folder, make = make_folder(host_folder, kind)
    with started(home, "root") as session:
        in_shell(session, f"{make}; chmod 2751 {folder}; cd {folder}; kept=yes")
        session.exec("sleep 1000 &")
        session.exec(f"rm -r {folder}")
        before = listing(session, host_folder)
        about = in_shell(session, ABOUT)
        assert about.startswith("directory 2751 0 ")
        for _again in range(2):  # the second time, the restored session is captured
            checkpoint = new_name(session)
            session.checkpoint(checkpoint, tier="live")
            session = restore_as(home, session, checkpoint, way)
            assert in_shell(session, "echo $kept; jobs -r | wc -l") == "yes\n1\n"
            assert in_shell(session, ABOUT).split()[:3] == about.split()[:3]
            assert in_shell(session, ABOUT).endswith("(deleted)\n")
            assert session.exec("touch file").exit == 1
            assert listing(session, host_folder) == before
        assert in_shell(session, f"cd ..; pwd -P; mkdir {folder}; cd {folder}; pwd -P") == f"{host_folder}\n{folder}\n"


@pytest.mark.parametrize("kind", KINDS)
def test_removed_files_and_folders_stay_open(home: Home, host_folder: Path, kind: str) -> None:
    folder, make = make_folder(host_folder, kind)
    with started(home, "root") as session:
        in_shell(session, f"{make}; mkdir -p {folder}/a/b")
        session.exec(f"exec 7<{folder} 8<{folder}/a/b 9<>{folder}/file; rm -r {folder}")
        before = listing(session, host_folder)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = restore_as(home, session, checkpoint, way)
            assert in_shell(
                back, "ls -A /proc/$$/fd/7/ /proc/$$/fd/8/"
            ) == "/proc/$$/fd/7/:\n\n/proc/$$/fd/8/:\n".replace("$$", in_shell(back, "echo $$").strip())
            assert in_shell(back, "read -r word <&9; echo $word; echo written >&9; cat /proc/$$/fd/9") == (
                "content\ncontent\nwritten\n"
            )
            assert listing(back, host_folder) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_of_a_removed_folder_may_be_in_use_again(home: Home, host_folder: Path, kind: str) -> None:
    """`rm -r build; mkdir build` while a process stays in the old folder; twice; then a file takes the name."""
    folder, make = make_folder(host_folder, kind)
    with started(home, "root") as session:
        in_shell(session, f"{make}; cd {folder}")
        session.exec("sleep 1000 &")
        session.exec(f"cd /; rm -r {folder}; mkdir {folder}; cd {folder}")
        session.exec("sleep 1000 &")
        session.exec(f"cd /; rm -r {folder}; echo new >{folder}; kept=yes")
        before = listing(session, host_folder)
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = restore_as(home, session, checkpoint, way)
            assert in_shell(back, f"echo $kept; jobs -r | wc -l; cat {folder}") == "yes\n2\nnew\n"
            assert in_shell(back, "for job in $(jobs -p); do readlink /proc/$job/cwd; done").count("(deleted)") == 2
            assert listing(back, host_folder) == before


def test_parents_of_a_removed_folder_may_be_removed_or_replaced_by_links(home: Home, host_folder: Path) -> None:
    folder, make = make_folder(host_folder, "of the base")
    for name in ("gone", "linked"):
        (folder / name / "inner").mkdir(parents=True)
    with started(home, "root") as session:
        in_shell(session, f"{make}; cd {folder}/gone/inner")
        session.exec("sleep 1000 &")
        session.exec(f"cd {folder}/linked/inner; kept=yes; rm -r {folder}/gone {folder}/linked")
        session.exec(f"ln -s /etc {folder}/linked")
        before = listing(session, host_folder), in_process(session, "ls /etc")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        for way in WAYS:
            back = restore_as(home, session, checkpoint, way)
            assert in_shell(back, "echo $kept; jobs -r | wc -l") == "yes\n1\n"
            assert (listing(back, host_folder), in_process(back, "ls /etc")) == before


def test_the_folder_in_which_a_session_was_started_may_be_removed(home: Home, host_folder: Path) -> None:
    """The example of the README: a restore keeps the session that it replaces, and `undo` restores that session."""
    folder, _ = make_folder(host_folder, "of the base")
    client = Client(home.path)
    session = client.start(f"start-{folder.name}", user="root", cwd=str(folder))
    try:
        assert in_shell(session, 'pwd; readlink /proc/1/cwd; [ -z "$OLDPWD" ]') == f"{folder}\n/\n"
        session.exec("kept=early; sleep 1000 &")
        session.checkpoint(f"{session.branch}.a", tier="live")
        session.exec("kept=late; sleep 1000 &")
        session.exec(f"rm -rf {folder}")
        session.restore(f"{session.branch}.a")
        assert in_shell(session, "echo $kept; jobs -r | wc -l; cat file") == "early\n1\ncontent\n"
        home.must("undo")
        assert (
            in_shell(session, f"echo $kept; jobs -r | wc -l; ls {host_folder} | grep -c {folder.name}; true")
            == "late\n2\n0\n"
        )
    finally:
        session.stop(discard=True)


def test_a_folder_whose_name_ends_in_deleted_is_not_taken_for_a_removed_one(home: Home, host_folder: Path) -> None:
    folder, _ = make_folder(host_folder, "of the base")
    named = folder.rename(folder.with_name(f"{folder.name} (deleted)"))
    with started(home, "root") as session:
        in_shell(session, f"cd '{named}'")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        back = restore_as(home, session, checkpoint, "fork")
        assert in_shell(back, "pwd -P; cat file") == f"{named}\ncontent\n"
