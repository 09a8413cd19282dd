"""Killed at any step, on a full disk, or refused by a file: the machine is as before, or as after."""

import contextlib
import errno
import functools
import itertools
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.applying.ground import Ground, furnish
from tests.upper.grounds import MIB, fill, mount_new
from tests.upper.pictures import picture
from waypoint.branch.applying import apply_steps
from waypoint.branch.applying.apply_steps import ApplyStep
from waypoint.branch.applying.journal import journals_in
from waypoint.branch.applying.transaction import Transaction
from waypoint.linux.calls import libc
from waypoint.linux.storage import mounts
from waypoint.model.errors import StateConflict

pytestmark = pytest.mark.privileged


def _killed(act: Callable[[], object], kill_at: int) -> bool:
    """Call `act` in a child that dies, as by SIGKILL, at its step number `kill_at`. Returns whether it came so far.
    Fails if the act does.
    """

    def prepare() -> None:
        left = kill_at

        def count(_step: ApplyStep) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        apply_steps.listener = count

    return _dies(prepare, act)


def _dies(prepare: Callable[[], object], act: Callable[[], object]) -> bool:
    """Do both in a child. Returns whether it has died of SIGKILL; fails if it has failed."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    was_killed = os.WIFSIGNALED(status)
    assert was_killed or status == 0
    return was_killed


def test_killed_at_every_step(ground: Ground) -> None:
    """Of an apply, on two file systems, and of the undo after it. Whoever comes next has the machine as before or as
    after.
    """
    ground.mount_inner("inner")
    furnish(ground)
    before = picture(ground.base)
    with ground.session() as view:
        after = picture(view)
    for step in itertools.count():
        known = len(ground.recorded)
        was_killed = _killed(ground.apply, step)
        found = ground.recover()
        assert (found.failed, found.unrecorded) == ([], [])
        is_done = len(ground.recorded) > known
        assert picture(ground.base) == (after if is_done else before), step
        assert ground.beside() == []
        if is_done:
            assert ground.revert(ground.recorded[-1]).conflicts == []
            assert picture(ground.base) == before
        if not was_killed:
            assert is_done
            assert step > 30
            break
    _kill_reverts(ground, before, after)


def _kill_reverts(ground: Ground, before: Any, after: Any) -> None:
    assert ground.apply().conflicts == []
    applied = ground.recorded[-1]
    for step in itertools.count():
        known = len(ground.recorded)
        was_killed = _killed(functools.partial(ground.revert, applied), step)
        assert ground.recover().failed == []
        is_done = len(ground.recorded) > known
        ground.reverts += ground.recorded[-1:] if is_done else []
        assert picture(ground.base) == (before if is_done else after), step
        assert ground.beside() == []
        if is_done:
            assert ground.revert(ground.recorded[-1]).conflicts == []  # does the apply again
            assert picture(ground.base) == after
            applied = ground.recorded[-1]
        if not was_killed:
            break


def test_killed_while_it_is_taken_back(ground: Ground) -> None:
    """Whoever takes back what was broken off may be killed as well."""
    furnish(ground)
    before = picture(ground.base)
    died: list[bool] = []
    for last in range(5, 17, 5):
        assert _killed(ground.apply, last)
        for calls in (3, 10, 30):
            died.append(_dies(functools.partial(_die_at_rename, calls), ground.recover))
        assert ground.recover().failed == []
        assert picture(ground.base) == before
        assert ground.beside() == []
    assert died == [True, True, False] * 3


def _die_at_rename(calls: int) -> None:
    """From now on this process dies at its call number `calls` of those that remove, rename or set times."""

    def counted(call: Any) -> Any:
        def act(*words: Any, **more: Any) -> Any:
            nonlocal calls
            calls -= words[0] != "name_to_handle_at"
            if calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*words, **more)

        return act

    for name in ("unlink", "rmdir", "utime", "rename"):
        setattr(os, name, counted(getattr(os, name)))
    libc.call = counted(libc.call)


@pytest.mark.parametrize("disk", ["machine", "journal"])
@pytest.mark.parametrize("step", [ApplyStep.STAGED_ONE, ApplyStep.STAGED, ApplyStep.EXCHANGED_ONE, ApplyStep.EXCHANGED])
def test_a_full_disk(ground: Ground, corner: Path, step: ApplyStep, disk: str) -> None:
    """It fails if something is yet to be written there. If that is a note alone that all is done, all is done, and what
    was there before waits beside until there is room.
    """
    small = mount_new("ext4", corner, 8 * MIB)
    if disk == "machine":
        mounts.bind(small, ground.base)
    else:
        ground.journals = small / "applied"
    furnish(ground)
    with ground.session() as view:
        (view / "in/large").write_bytes(os.urandom(MIB))
        after = _without_found(view)
    before = _without_found(ground.base)
    last_written = ApplyStep.STAGED_ONE if disk == "machine" else ApplyStep.EXCHANGED_ONE
    fails = list(ApplyStep).index(step) <= list(ApplyStep).index(last_written)
    with _full_from(step, small / "lost+found/filler"):
        if fails:
            with pytest.raises(OSError, match="No space") as told:
                ground.apply()
            full = ground.base if disk == "machine" else ground.journals
            assert str(told.value.filename).startswith(str(full))
        else:
            assert ground.apply().conflicts == []
        if is_last := (disk, step) == ("journal", ApplyStep.EXCHANGED):
            assert ground.beside() != []
            with pytest.raises(StateConflict) as told:
                ground.revert(ground.recorded[-1])
            assert told.value.next_step == "see why: waypoint daemon logs; then try again"
        else:
            assert _without_found(ground.base) == (before if fails else after)
            assert ground.beside() == []
    found = ground.recover()
    assert (found.failed, found.finished) == ([], ground.recorded[-1:] if is_last else [])
    if fails:
        assert _without_found(ground.base) == before
        assert ground.apply().conflicts == []
    assert _without_found(ground.base) == after
    assert ground.revert(ground.recorded[-1]).conflicts == []
    assert _without_found(ground.base) == before
    assert ground.beside() == []
    mounts.umount(ground.base if disk == "machine" else small)


def _without_found(root: Path) -> dict[bytes, Any]:
    """The picture, without the folder that each ext4 has."""
    return {path: facts for path, facts in picture(root).items() if not path.startswith(b"lost+found")}


@contextlib.contextmanager
def _full_from(step: ApplyStep, filler: Path) -> Iterator[None]:
    """The disk is full from the first `step` in the `with` to its end."""

    def full(reached: ApplyStep) -> None:
        if reached is step:
            apply_steps.listener = None
            fill(filler)

    apply_steps.listener = full
    try:
        yield
    finally:
        apply_steps.listener = None
        filler.unlink()


def test_a_file_that_may_not_be_replaced(ground: Ground) -> None:
    furnish(ground)
    before = picture(ground.base)
    subprocess.run(["chattr", "+i", ground.base / "in/gone"], check=True)
    ground.since_ns = time.time_ns()
    try:
        assert [(line.path, line.said) for line in ground.apply().conflicts] == [
            ("/in/gone", "it cannot be replaced: Operation not permitted")
        ]
    finally:
        subprocess.run(["chattr", "-i", ground.base / "in/gone"], check=True)
    assert picture(ground.base) == before
    assert ground.beside() == []


def test_what_the_machines_file_system_does_not_take(ground: Ground, corner: Path) -> None:
    """An attribute that is too large for ext4, which says that the disk is full."""
    small = mount_new("ext4", corner, 8 * MIB)
    mounts.bind(small, ground.base)
    furnish(ground)
    with ground.session() as view:
        os.setxattr(view / "in/new/x", "user.large", bytes(9000))
    before = picture(ground.base)
    assert [(line.path, line.said) for line in ground.apply().conflicts] == [
        ("/in/new", "it cannot be made there: its attribute user.large of 9000 bytes: No space left on device")
    ]
    assert (picture(ground.base), ground.beside(), ground.recover().failed) == (before, [], [])
    mounts.umount(ground.base)
    mounts.umount(small)


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_folder_that_may_not_be_changed(ground: Ground, flag: str) -> None:
    """Names can be added to one with +a, and not be taken away again: it is told before. If it becomes such a one
    meanwhile, all else is as before at once, and this one as soon as it may be changed.
    """
    furnish(ground)
    before = picture(ground.base)
    with _locked(flag, ground.base / "in"):
        ground.since_ns = time.time_ns()
        told = [(line.path, line.said) for line in ground.apply().conflicts]
        assert told == [("/in", "nothing in it may be replaced (chattr +i or +a)")]
        assert not ground.journals.joinpath(ground.last).exists()
    ground.since_ns = time.time_ns()
    with contextlib.ExitStack() as held:

        def lock(step: ApplyStep) -> None:
            if step is ApplyStep.EXCHANGED:
                held.enter_context(_locked(flag, ground.base / "in"))
                raise OSError(errno.EIO, "what it would be")

        apply_steps.listener = lock
        held.callback(setattr, apply_steps, "listener", None)
        with pytest.raises(StateConflict) as refused:
            ground.apply()
        assert (refused.value.on, refused.value.said) == ("/in", "Operation not permitted")
        next_step = "undo what forbids it (chattr +a, a read-only mount, a full disk): the next start goes on"
        assert refused.value.next_step == next_step
        assert _outside_of_in(ground) == {path: facts for path, facts in before.items() if not path.startswith(b"in")}
        (failed,) = ground.recover().failed
        assert failed.endswith(f"/in: Operation not permitted; {next_step}")
    assert ground.recover().failed == []
    assert (picture(ground.base), ground.beside(), ground.recorded) == (before, [], [])


def _outside_of_in(ground: Ground) -> dict[bytes, Any]:
    return {path: facts for path, facts in picture(ground.base).items() if not path.startswith(b"in")}


@contextlib.contextmanager
def _locked(flag: str, path: Path) -> Iterator[None]:
    subprocess.run(["chattr", f"+{flag}", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


def test_a_machine_that_is_read_only(ground: Ground) -> None:
    furnish(ground)
    mounts.bind(ground.base, ground.base)
    mounts.remount_bind(ground.base, mounts.MS_RDONLY)
    assert [line.said for line in ground.apply().conflicts] == ["it cannot be replaced: Read-only file system"]
    mounts.umount(ground.base)
    assert (ground.beside(), ground.recover().taken_back) == ([], []), "there was nothing to be taken back"
    assert ground.apply().conflicts == []


def test_on_another_file_system_what_was_there_is_copied(ground: Ground, corner: Path) -> None:
    """The journal lies elsewhere: nothing can be renamed into it, nor out of it."""
    mounts.bind(ground.base, ground.base)
    furnish(ground)
    before = picture(ground.base)
    with ground.session() as view:
        after = picture(view)
    for step in (4, 12, 22, 30):
        _killed(ground.apply, step)
        assert ground.recover().failed == []
        if ground.recorded:
            break
        assert picture(ground.base) == before
    if not ground.recorded:
        assert ground.apply().conflicts == []
    assert picture(ground.base) == after
    assert ground.revert(ground.recorded[-1]).conflicts == []
    assert picture(ground.base) == before
    assert ground.revert(ground.recorded[-1]).conflicts == []
    assert picture(ground.base) == after
    assert ground.beside() == []
    mounts.umount(ground.base)


def test_what_somebody_has_put_there_meanwhile_is_not_taken_away(ground: Ground) -> None:
    """A change was broken off, and somebody has put another file in the place of the new one."""
    furnish(ground)
    before = picture(ground.base)
    actions = len(_planned(ground))
    assert _killed(ground.apply, 1 + actions + 1 + actions)  # all are exchanged, and nothing is in the log
    (ground.base / "other").write_text("by somebody")
    os.rename(ground.base / "other", ground.base / "edited")
    found = ground.recover()
    assert len(found.failed) == 1
    assert (ground.base / "edited").read_text() == "by somebody"
    with pytest.raises(StateConflict) as told:
        _recovered_aloud(ground)
    assert told.value.next_step == "move the other file away: the next start goes on"
    (ground.base / "edited").unlink()
    assert ground.recover().failed == []
    assert picture(ground.base) == before
    assert ground.beside() == []


def _planned(ground: Ground) -> list[str]:
    return [line.path for line in ground.apply(dry_run=True).changes if "attributes" not in line.said]


def _recovered_aloud(ground: Ground) -> None:
    (journal,) = journals_in(str(ground.journals))
    plan = journal.plan()
    assert plan is not None
    with Transaction(journal, plan) as work:
        work.roll_back(lambda _action, _beside, _number: None)
