"""Somebody changes the machine's files while a change of them is under way, or its end cannot be written down."""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.applying.ground import Ground
from tests.upper.pictures import picture
from waypoint.branch.applying import apply_steps, planning
from waypoint.branch.applying.apply_records import ApplyOutcome, Recovered
from waypoint.branch.applying.apply_steps import ApplyStep
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed, StateConflict

pytestmark = pytest.mark.privileged

THEM = 1234
STEPS = [ApplyStep.STAGED_ONE, ApplyStep.STAGED, ApplyStep.EXCHANGED_ONE]
NAMES = ("edited", "gone", "last")
NOTHING = Recovered(taken_back=[], finished=[], unrecorded=[], failed=[])


def _furnish(ground: Ground) -> Path:
    """Changes in a folder of somebody's, and in one that lies in it. Returns a folder outside, with files of the same
    names.
    """
    outside = ground.base.parent / "outside"
    for folder in (ground.base / "theirs/in", ground.base / "theirs/in/deep", outside, outside / "deep"):
        folder.mkdir(parents=True)
        for name in NAMES:
            (folder / name).write_text(f"{folder.name}/{name}")
    for path in (ground.base / "theirs", *(ground.base / "theirs").rglob("*")):
        os.chown(path, THEM, THEM)
    ground.begin()
    with ground.session() as view:
        for folder in (view / "theirs/in", view / "theirs/in/deep"):
            (folder / "edited").write_text("by the session")
            (folder / "last").write_text("by the session")
            (folder / "made").write_text("by the session")
            (folder / "gone").unlink()
    return outside


@contextlib.contextmanager
def _at(step: ApplyStep, act: Callable[[], object]) -> Iterator[None]:
    """At the first `step` in the `with`, `act` is done."""
    done = False

    def listen(reached: ApplyStep) -> None:
        nonlocal done
        if reached is step and not done:
            done = True
            act()

    apply_steps.listener = listen
    try:
        yield
    finally:
        apply_steps.listener = None
    assert done


def _by_them(folder: Path, act: Callable[[int], None]) -> None:
    """Done with the rights of the folder's owner; `act` gets its descriptor, as they may not pass the way to it."""
    with open_folder(folder) as fd:
        os.seteuid(THEM)
        try:
            act(fd)
        finally:
            os.seteuid(0)


def _move_away(ground: Ground, puts: Callable[[int], None]) -> None:
    """The folder gets another name; `puts` is given a descriptor of the folder in which it was."""

    def act(fd: int) -> None:
        os.rename("in", "aside", src_dir_fd=fd, dst_dir_fd=fd)
        puts(fd)

    _by_them(ground.base / "theirs", act)


def _put_link(outside: Path, fd: int) -> None:
    os.symlink(outside, "in", dir_fd=fd)


def _put_folder(fd: int) -> None:
    os.mkdir("in", dir_fd=fd)


@pytest.mark.parametrize("kind", ["nothing", "folder", "link"])
@pytest.mark.parametrize("step", STEPS)
def test_a_folder_that_is_moved_is_found(ground: Ground, step: ApplyStep, kind: str) -> None:
    """With what waits in it, whatever is in its place now. Nothing is changed there, nor behind a link."""
    outside = _furnish(ground)
    before, theirs = picture(outside), picture(ground.base / "theirs/in")
    puts = {"nothing": lambda _: None, "folder": _put_folder, "link": functools.partial(_put_link, outside)}[kind]
    with _at(step, lambda: _move_away(ground, puts)):
        assert [line.path.rpartition("/")[0] for line in ground.apply().conflicts] in (
            [["/theirs/in"], ["/theirs/in/deep"]]
        )
    assert (picture(ground.base / "theirs/aside"), picture(outside), ground.recorded) == (theirs, before, [])
    if kind == "folder":
        (ground.base / "theirs/in").rmdir()  # which it can only be if it is empty
    assert (ground.recover(), ground.beside()) == (NOTHING, [])
    (ground.base / "theirs/in").unlink(missing_ok=True)
    (ground.base / "theirs/aside").rename(ground.base / "theirs/in")
    assert ground.apply().conflicts == []
    assert picture(outside) == before


def test_a_folder_that_is_moved_before_what_was_there_is_kept(ground: Ground) -> None:
    _furnish(ground)
    theirs = picture(ground.base / "theirs/in")
    with _at(ApplyStep.FINISHED, lambda: _move_away(ground, lambda _: None)):
        assert ground.apply().conflicts == []
    assert (ground.beside(), ground.recover()) == ([], NOTHING)
    refused = ground.revert(ground.recorded[-1])
    assert {line.said for line in refused.conflicts} == {
        "its folder is not there any more, or a link or a mount is in its place"
    }
    assert refused.fixed == len(refused.conflicts) == 8
    assert ground.revert(ground.recorded[-1], force=True).fixed == 8
    (ground.base / "theirs/aside").rename(ground.base / "theirs/in")
    assert ground.revert(ground.recorded[-1]).conflicts == []
    assert picture(ground.base / "theirs/in") == theirs


@pytest.mark.parametrize("kind", ["nothing", "link"])
def test_a_folder_that_cannot_be_found_is_to_be_moved_back(
    ground: Ground, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system has no handles, as an overlay."""
    monkeypatch.setattr(planning, "handle_of", lambda _: None)
    outside = _furnish(ground)
    before, theirs = picture(outside), picture(ground.base / "theirs/in")
    puts = functools.partial(_put_link, outside) if kind == "link" else lambda _: None
    for step in STEPS:
        with _at(step, functools.partial(_move_away, ground, puts)), pytest.raises(StateConflict) as told:
            ground.apply()
        next_step = "move the folder back (if it was removed, make an empty one): the next start goes on"
        assert (told.value.on, told.value.next_step) == ("/theirs/in", next_step)
        assert f".waypoint-{ground.last}" in told.value.said
        assert len(ground.recover().failed) == 1
        assert (picture(outside), ground.recorded) == (before, [])
        (ground.base / "theirs/in").unlink(missing_ok=True)
        (ground.base / "theirs/aside").rename(ground.base / "theirs/in")
        assert ground.recover().failed == []
        assert (picture(ground.base / "theirs/in"), ground.beside()) == (theirs, [])
    # With all that waits in it.
    with _at(ApplyStep.STAGED, lambda: shutil.rmtree(ground.base / "theirs/in")), pytest.raises(StateConflict):
        ground.apply()
    assert len(ground.recover().failed) == 1
    (ground.base / "theirs/in/deep").mkdir(parents=True)
    assert ground.recover().failed == []


def test_a_folder_that_is_removed_is_not_missed(ground: Ground) -> None:
    _furnish(ground)
    with _at(ApplyStep.EXCHANGED_ONE, lambda: shutil.rmtree(ground.base / "theirs/in")):
        assert len(ground.apply().conflicts) == 1
    assert ground.recover() == NOTHING


@pytest.mark.parametrize("act", ["write", "link", "remove"])
@pytest.mark.parametrize("step", STEPS)
def test_a_file_that_is_changed_meanwhile_is_a_conflict(ground: Ground, step: ApplyStep, act: str) -> None:
    outside = _furnish(ground)
    before, elsewhere = picture(ground.base), picture(outside)
    path = "theirs/in/deep/last"

    def change(fd: int) -> None:
        if act == "write":
            with open(os.open("last", os.O_WRONLY | os.O_TRUNC, dir_fd=fd), "w") as file:
                file.write("by them")
            return
        os.unlink("last", dir_fd=fd)
        if act == "link":
            os.symlink(outside / "last", "last", dir_fd=fd)

    with _at(step, lambda: _by_them((ground.base / path).parent, change)):
        found = ground.apply()
    assert [line.path for line in found.conflicts] == [f"/{path}"]
    assert "just now" in found.conflicts[0].said
    after = picture(ground.base)
    assert picture(outside) == elsewhere
    for shown in (before, after):
        shown.pop(os.fsencode(path), None)
        shown.pop(b"theirs/in/deep")  # its time
    assert after == before
    assert ground.recorded == []
    assert ground.beside() == []
    assert (ground.base / path).is_symlink() == (act == "link")


def test_what_cannot_be_written_down_is_taken_back(ground: Ground) -> None:
    _furnish(ground)
    before = picture(ground.base)

    def refuse(count: int, outcome: ApplyOutcome) -> None:
        assert (count, outcome.files) == (8, 8)
        raise Failed("write", "the log", "it cannot be", "try again")

    with pytest.raises(Failed, match="it cannot be"):
        ground.apply(confirm=refuse)
    assert picture(ground.base) == before
    assert ground.beside() == []
    assert (ground.recorded, ground.recover().failed) == ([], [])
    assert ground.apply().conflicts == []
