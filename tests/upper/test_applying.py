"""Changing a folder by a plan: all or nothing, and back. Random uppers stand for sessions, a folder for the machine."""

import contextlib
import os
import random
import shutil
import stat
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.upper.overlays import Picture, Stack, make_stack, picture, random_history
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import copying, transaction
from waypoint.upper.apply_journal import ApplyPlan, Journal, Step, journals_in
from waypoint.upper.apply_plan import Conflict, Planner, Resolution, Rules, Seen, find_missing_folders, plan_reversal
from waypoint.upper.comparing import Scope, changes
from waypoint.upper.copies import Copies
from waypoint.upper.transaction import Changed, Transaction
from waypoint.upper.views import Entry, Pairs, Views, candidates

pytestmark = [pytest.mark.privileged]

HISTORIES = 30
LATE_NS = 1 << 62  # later than any file: the machine has not changed


ELSEWHERE = "its folder does not exist on the machine, or is another mount there"


class Killed(BaseException):
    pass


class Machine(NamedTuple):
    """A folder that stands for the machine, and the stack with the uppers."""

    stack: Stack
    folder: Path

    @property
    def journals(self) -> Path:
        return self.stack.folder / "applied"

    def picture(self) -> Picture:
        return picture(self.folder, with_times=True)

    @contextlib.contextmanager
    def planned(
        self, wanted: str, present: str = "", since_ns: int = LATE_NS, resolution: Resolution = "refuse"
    ) -> Iterator[tuple[ApplyPlan, list[Conflict], Pairs]]:
        scope = Scope(excluded=("staging",))
        with (
            self.stack.view(wanted) as view,
            open_folder(view) as shown,
            open_folder(self.folder) as machine,
            Pairs(Views(shown, machine)) as pairs,
        ):
            uppers = [str(self.stack.upper(name)) if name else "" for name in (wanted, present)]
            planner = Planner()
            seen = Seen(since_ns, {"a"}, journals_in(self.journals))
            rules = Rules(
                seen,
                resolution,
                allow_special=True,
                first_changed_ns=lambda _: 0,
                lost_its_source=lambda _: False,
                is_in_upper=lambda _: True,
                has_nothing_staged=lambda _: False,
                merge=lambda _: None,
            )
            planner.add_place(0, changes(candidates(*uppers, scope.concerns), pairs, scope), pairs, rules)
            steps, folders = planner.steps()
            ident = f"journal-{len(list(journals_in(self.journals)))}"
            plan = plan_of(ident, "a", self.folder, steps, folders)
            yield plan, [*planner.conflicts, *find_missing_folders(steps, [machine])], pairs

    def apply(self, wanted: str, present: str = "", **options: object) -> Journal:
        with self.planned(wanted, present, **options) as (plan, conflicts, pairs):  # type: ignore[arg-type]
            assert conflicts == []
            return self.carry_out(plan, Copies(lambda step: pairs.at(step.name).wanted).make)

    def carry_out(self, plan: ApplyPlan, make: transaction.Make) -> Journal:
        journal = Journal(self.journals, plan.ident)
        with Transaction(journal, plan) as work:
            journal.begin(plan)
            work.stage(make)
            work.exchange()
            work.settle()
        return journal

    def take_back(self, journal: Journal, *, force: bool = False) -> list[Conflict]:
        plan = journal.plan()
        assert plan is not None
        with open_folder(self.folder) as root, open_folder(journal.kept) as kept:
            seen = Seen(0, set(), journals_in(self.journals))
            reversal = plan_reversal(plan, journal.left(), [root], seen, force=force)
            if not reversal.conflicts:
                back = plan_of(f"{journal.ident}-back", "", self.folder, reversal.steps, reversal.folders)
                former = Counter(entry.inode() for entry in os.scandir(kept))
                self.carry_out(back, Copies(lambda step: Entry(kept, str(step.kept)), former=former).make)
            return reversal.conflicts

    def recover(self, journal: Journal) -> None:
        plan = journal.plan()
        if plan is not None:
            with Transaction(journal, plan) as work:
                work.roll_back()


def plan_of(ident: str, capture: str, folder: Path, steps: list[Step], folders: list[Step]) -> ApplyPlan:
    return ApplyPlan(
        ident=ident,
        branch="a",
        capture=capture,
        uid=0,
        gid=0,
        places=[str(folder)],
        targets=["/"],
        steps=steps,
        folders=folders,
    )


def copy_from(pairs: Pairs, step: Step, target: Entry) -> None:
    source = pairs.at(step.name).wanted
    assert source is not None
    facts = source.look()
    assert facts is not None
    copying.copy(source, target, facts)


def linked(root: Path, plan: ApplyPlan) -> set[frozenset[bytes]]:
    """The sets of names that one file has, of the files that the plan puts."""
    files: dict[int, set[bytes]] = {}
    for step in plan.steps:
        if step.wanted is not None and not step.wanted.is_folder:
            files.setdefault(os.lstat(os.fsencode(root) + b"/" + step.path).st_ino, set()).add(step.path)
    return {frozenset(names) for names in files.values()}


def random_machine(corner: Path, seed: int) -> tuple[Machine, random.Random]:
    """A machine like the view of the random upper "one", and a random upper "other" over the same base."""
    choose = random.Random(seed)
    stack = random_history(corner / f"history-{seed}", choose, (25, 10, 12))
    machine = Machine(stack, stack.folder / "machine")
    with stack.view("one") as view:
        subprocess.run(["cp", "-a", view, machine.folder], check=True)
    return machine, choose


@pytest.fixture
def machine(corner: Path) -> Machine:
    stack = make_stack(corner)
    (stack.base / "d").mkdir()
    (stack.base / "d/old").write_text("old")
    (stack.base / "file").write_text("file")
    return Machine(stack, stack.folder / "machine")


def copy_base(machine: Machine) -> None:
    shutil.copytree(machine.stack.base, machine.folder, symlinks=True)


def test_an_apply_makes_the_folder_like_the_view_and_its_reversal_as_before(corner: Path) -> None:
    make_stack(corner)
    tried = set[tuple[int, int]]()  # the former and the new type of each file that was put
    most_names = 0
    for seed in range(HISTORIES):
        machine, _ = random_machine(corner, seed)
        before = machine.picture()
        journal = machine.apply("other", "one")
        plan = journal.plan()
        assert plan is not None
        with machine.stack.view("other") as view:
            wanted = picture(view, with_times=True)
            assert linked(machine.folder, plan) == linked(view, plan), f"seed {seed}"
        tried |= {
            tuple(stat.S_IFMT(mark.mode) if mark else 0 for mark in (step.before, step.wanted)) for step in plan.steps
        }
        most_names = max(most_names, *map(len, linked(machine.folder, plan)), 0)
        changed = {step.path for step in [*plan.steps, *plan.folders] if step.wanted is not None}
        assert machine.picture().keys() == wanted.keys(), f"seed {seed}"
        for path, found in machine.picture().items():  # a file that was written with the same content has its old time
            known = len(found) if path in changed else -1
            assert found[:known] == wanted[path][:known], f"seed {seed}: {path!r}"
        assert machine.take_back(journal) == []
        assert machine.picture() == before, f"seed {seed}: taken back"
        assert [name for name in os.listdir(machine.folder) if name.startswith(".waypoint")] == []
    missing, types = 0, (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
    assert tried >= {*((missing, one) for one in types), *((one, missing) for one in types)}
    assert tried >= {(stat.S_IFREG, stat.S_IFREG), (stat.S_IFREG, stat.S_IFLNK)}
    assert most_names > 1


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """Raise Killed at the call number `at` of a system call that changes files. Returns the counter of calls."""
    count = 0

    def counted(act: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == at:
                raise Killed
            return act(*args, **options)

        return call

    for place, name in ((transaction, "exchange"), (transaction, "rename_new"), (transaction, "set_attributes")):
        monkeypatch.setattr(place, name, counted(getattr(place, name)))
    for name in ("rmdir", "mkdir", "rename", "unlink"):
        monkeypatch.setattr(transaction.os, name, counted(getattr(os, name)))
    return lambda: count


def test_a_change_that_is_killed_at_any_call_is_rolled_back(corner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_stack(corner)
    for seed in range(HISTORIES):
        machine, choose = random_machine(corner, 1000 + seed)
        before = machine.picture()
        with machine.planned("other", "one") as (plan, _, pairs), monkeypatch.context() as patch:
            journal = Journal(machine.journals, plan.ident)
            calls = 2 * len(plan.steps) + len(plan.folders) + 1
            killing(patch, choose.randint(1, calls))
            with contextlib.suppress(Killed), Transaction(journal, plan) as work:
                journal.begin(plan)
                work.stage(lambda _, step, target: copy_from(pairs, step, target))
                work.exchange()
                raise Killed
        with monkeypatch.context() as patch, contextlib.suppress(Killed):  # the next daemon is killed, too
            killing(patch, choose.randint(1, calls))
            machine.recover(journal)
        machine.recover(journal)
        assert machine.picture() == before, f"seed {seed}"
        assert [name for name in os.listdir(machine.folder) if name.startswith(".waypoint")] == []


def test_a_recorded_change_is_settled_although_the_first_try_is_killed(
    corner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stack(corner)
    for seed in range(HISTORIES):
        machine, choose = random_machine(corner, 2000 + seed)
        before = machine.picture()
        with machine.planned("other", "one") as (plan, _, pairs):
            journal = Journal(machine.journals, plan.ident)
            with Transaction(journal, plan) as work:
                journal.begin(plan)
                work.stage(lambda _, step, target: copy_from(pairs, step, target))
                work.exchange()
        with monkeypatch.context() as patch, contextlib.suppress(Killed), Transaction(journal, plan) as work:
            killing(patch, choose.randint(1, len(plan.steps) + 1))
            work.settle()
        with Transaction(journal, plan) as work:
            work.settle()
        assert machine.take_back(journal) == []
        assert machine.picture() == before, f"seed {seed}"


def test_files_that_the_machine_has_changed_are_conflicts(machine: Machine) -> None:
    with machine.stack.writable("one") as merged:
        (merged / "file").write_text("session")
        shutil.rmtree(merged / "d")
        (merged / "new").write_text("new")
    copy_base(machine)
    for resolution, listed in (("refuse", ["d/old", "file"]), ("ours", []), ("theirs", [])):
        with machine.planned("one", since_ns=0, resolution=resolution) as (plan, conflicts, _):  # type: ignore[arg-type]
            assert sorted(one.path for one in conflicts) == listed
            paths = {step.name for step in plan.steps}
            assert paths == ({"new"} if resolution == "ours" else {"d", "d/old", "file", "new"})


def test_a_folder_keeps_its_attributes_on_the_machine_and_gets_new_files(machine: Machine) -> None:
    with machine.stack.writable("one") as merged:
        (merged / "d").chmod(0o700)
        (merged / "d/new").write_text("new")
    copy_base(machine)
    (machine.folder / "d").chmod(0o711)
    with machine.planned("one", since_ns=0) as (_, conflicts, _pairs):
        assert [one.path for one in conflicts] == ["d"]
    machine.apply("one", since_ns=0, resolution="ours")
    assert ((machine.folder / "d").stat().st_mode & 0o777, (machine.folder / "d/new").read_text()) == (0o711, "new")


def test_new_folders_get_their_attributes_after_their_content(machine: Machine) -> None:
    entries = b"".join(struct.pack("<HHi", tag, rights, -1) for tag, rights in ((1, 7), (4, 7), (0x20, 0)))
    default_acl = struct.pack("<I", 2) + entries
    with machine.stack.writable("one") as merged:
        (merged / "new/in").mkdir(parents=True)
        (merged / "new/in/file").write_text("x")
        (merged / "new/file").write_text("x")
        os.link(merged / "new/file", merged / "new/name")
        os.setxattr(merged / "new", "system.posix_acl_default", default_acl)
        for path in ("new/in", "new"):
            (merged / path).chmod(0o555)
            os.utime(merged / path, (1, 1))
    with machine.stack.view("one") as view:
        wanted = picture(view, with_times=True)
    copy_base(machine)
    machine.apply("one")
    made = machine.picture()
    assert {path: made[path] for path in made if path.startswith(b"new")} == {
        path: wanted[path] for path in wanted if path.startswith(b"new")
    }
    new = machine.folder / "new"
    assert "system.posix_acl_default" in os.listxattr(new)
    assert os.listxattr(new / "in") == []
    assert (new / "file").stat().st_ino == (new / "name").stat().st_ino


def test_what_an_apply_has_left_is_no_conflict_for_the_next_one_and_after_a_reversal(machine: Machine) -> None:
    copy_base(machine)
    since_ns = max(os.lstat(path).st_ctime_ns for path in machine.folder.rglob("*"))
    with machine.stack.writable("one") as merged:
        (merged / "file").write_text("one")
    first = machine.apply("one", since_ns=since_ns)
    with machine.stack.writable("one") as merged:
        (merged / "file").write_text("two")
        (merged / "d/old").unlink()
    second = machine.apply("one", since_ns=since_ns)
    assert machine.take_back(second) == []
    assert (machine.folder / "file").read_text() == "one"
    machine.apply("one", since_ns=since_ns)
    assert (machine.folder / "file").read_text() == "two"
    assert [one.path for one in machine.take_back(first)] == ["file"]
    (machine.folder / "file").write_text("machine")
    with machine.stack.writable("one") as merged:
        (merged / "file").write_text("three")
    with machine.planned("one", since_ns=since_ns) as (_, conflicts, _pairs):
        assert [one.path for one in conflicts] == ["file"]


def test_what_was_changed_after_an_apply_is_kept_or_with_force_replaced(machine: Machine) -> None:
    with machine.stack.writable("one") as merged:
        (merged / "file").write_text("session")
        (merged / "new").write_text("session")
        (merged / "made/in").mkdir(parents=True)
        (merged / "made/in/file").write_text("session")
        shutil.rmtree(merged / "d")
        (merged / "d").write_text("a file now")
    copy_base(machine)
    before = machine.picture()
    journal = machine.apply("one")
    (machine.folder / "file").write_text("later")
    (machine.folder / "new").unlink()
    (machine.folder / "made/in/cache").write_text("later")
    changed = machine.picture()
    assert [(one.path, one.can_choose) for one in machine.take_back(journal)] == [("file", True)]
    assert machine.picture() == changed
    assert machine.take_back(journal, force=True) == []
    assert (machine.folder / "made/in/cache").read_text() == "later", "a file that the apply has not made"
    shutil.rmtree(machine.folder / "made")
    assert machine.picture() == before


def test_a_file_that_changes_after_the_plan_is_not_replaced(machine: Machine) -> None:
    with machine.stack.writable("one") as merged:
        (merged / "d/old").write_text("session")
        (merged / "file").write_text("session")
    copy_base(machine)
    with machine.planned("one") as (plan, _, pairs):
        journal = Journal(machine.journals, plan.ident)
        with Transaction(journal, plan) as work:
            journal.begin(plan)
            work.stage(lambda _, step, target: copy_from(pairs, step, target))
            (machine.folder / "file").write_text("machine")
            with pytest.raises(Changed):
                work.exchange()
            work.roll_back()
    assert ((machine.folder / "d/old").read_text(), (machine.folder / "file").read_text()) == ("old", "machine")


def test_links_and_mounts_in_place_of_folders_are_never_entered(machine: Machine) -> None:
    with machine.stack.writable("one") as merged:
        (merged / "d/old").write_text("session")
        (merged / "d/new").write_text("session")
    copy_base(machine)
    outside = machine.stack.folder / "outside"
    outside.mkdir()
    (outside / "old").write_text("outside")
    shutil.rmtree(machine.folder / "d")
    (machine.folder / "d").symlink_to(outside)
    with machine.planned("one") as (plan, conflicts, _):
        assert {one.path for one in conflicts} | {step.name for step in plan.steps} >= {"d"}
        journal = Journal(machine.journals, plan.ident)
    (machine.folder / "d").unlink()
    (machine.folder / "d").mkdir()
    (machine.folder / "d/old").write_text("old")
    subprocess.run(["mount", "--bind", outside, machine.folder / "d"], check=True)
    try:
        with machine.planned("one") as (_, conflicts, _pairs):
            assert [one.said for one in conflicts] == [
                "its folder does not exist on the machine, or is another mount there"
            ] * 2
    finally:
        subprocess.run(["umount", machine.folder / "d"], check=True)
    assert (outside / "old").read_text() == "outside"
    assert not journal.folder.exists()
