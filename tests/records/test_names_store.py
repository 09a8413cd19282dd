"""names.db: names, captures, live rows and the operation log, one transaction per step."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waypoint.branch.refs import rename
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, LiveRow, Operation, Ref, Setting, User, layers_of
from waypoint.records.names import Names
from waypoint.records.reading import forks_prefix

USER = User(name="ann", uid=1000, gid=1000, groups=[1000], home="/home/ann", shell="/bin/bash")
SETTING = Setting(base="/", binds=[], net="private", user=USER, cwd="/", env={}, command=[])


def row_of(branch: str) -> LiveRow:
    session = new_id()
    return LiveRow(branch=branch, session=session, tree=session, started=time.time(), setting=SETTING)


def capture_of(row: LiveRow, capture_id: str | None = None, parents: list[str] | None = None) -> Capture:
    return Capture(
        id=capture_id or new_id(),
        branch=row.branch,
        parents=parents or [],
        created=time.time(),
        tier="files",
        layers=layers_of(FilesLayer(tree=row.tree)),
        setting=row.setting,
        reason="exited",
        exit=0,
    )


def begin(names: Names, row: LiveRow, origin: str | None = None) -> None:
    """Record a finished start of a session."""
    with names.change("reserve") as change:
        change.reserve(row)
    with names.change("start") as change:
        change.ready(row, origin)


def end(names: Names, row: LiveRow, capture: Capture) -> None:
    with names.change("end") as change:
        change.add(capture)
        change.advance(row.branch, capture.id)
        change.forget(row)


def begin_and_end(names: Names, branch: str = "main") -> Capture:
    """Record the start and the end of a session. Return the tip of its branch."""
    row = row_of(branch)
    begin(names, row)
    capture = capture_of(row)
    end(names, row, capture)
    return capture


def name_it(names: Names, name: str, capture: Capture) -> None:
    with names.change("checkpoint") as change:
        change.create(name, Ref(kind="checkpoint", capture=capture.id))


def test_a_session_that_ends_becomes_the_tip_of_its_branch(names: Names) -> None:
    row = row_of("main")
    begin(names, row)
    assert names.live() == [row]
    capture = capture_of(row)
    end(names, row, capture)
    assert names.live() == []
    assert names.resolve("main") == capture
    assert names.resolve(capture.id[:8]) == capture
    assert names.names_of(capture.id) == ["main"]


def test_a_name_that_is_the_beginning_of_a_captures_id_is_refused(names: Names) -> None:
    capture = begin_and_end(names)
    other = "f" if capture.id[0] != "f" else "e"
    for taken in (capture.id[:4], capture.id[:31]):
        with (
            pytest.raises(StateConflict, match="an existing capture has an id that begins with this"),
            names.change("check") as change,
        ):
            change.check_new(taken, "checkpoint")
        with pytest.raises(StateConflict), names.change("reserve") as change:
            change.reserve(row_of(taken))
        with pytest.raises(StateConflict):
            rename(names, "main", taken, ())
    with pytest.raises(UsageProblem, match="look like the id"), names.change("check") as change:
        change.check_new(other * 32, "checkpoint")
    with names.change("check") as change:
        for free in (capture.id[:3], other * 8, capture.id[:4].upper() + "X", f"{capture.id}0"):
            change.check_new(free, "checkpoint")


def test_an_unfinished_start_is_not_listed_as_live(names: Names) -> None:
    row = row_of("main")
    with names.change("reserve") as change:
        change.reserve(row)
    assert names.live() == []
    assert names.live(ready=False) == [row]
    assert names.refs() == {}
    assert names.operations() == []


def test_a_branch_has_one_live_session(names: Names) -> None:
    begin(names, row_of("main"))
    with pytest.raises(StateConflict):
        begin(names, row_of("main"))
    assert len(names.live()) == 1


def test_two_starts_on_one_branch_exclude_each_other(names: Names) -> None:
    with names.change("reserve") as change:
        change.reserve(row_of("main"))
    with pytest.raises(StateConflict), names.change("reserve") as change:
        change.reserve(row_of("main"))


def test_a_session_is_replaced_in_one_transaction(names: Names) -> None:
    old, new = row_of("main"), row_of("main")
    begin(names, old)
    with names.change("reserve") as change:
        change.reserve(new, beside=True)
    with names.change("restore") as change:
        change.forget(old)
        change.ready(new, None)
    assert names.live() == [new]
    assert names.operations(1)[0].sessions == {"main": (True, True)}


def test_a_branch_name_excludes_those_below_it(names: Names) -> None:
    begin(names, row_of("a"))
    with pytest.raises(StateConflict, match="the branch a exists"):
        begin(names, row_of("a/b"))
    assert list(names.refs()) == ["a"]


def test_a_name_excludes_those_above_it_and_no_others(names: Names) -> None:
    begin(names, row_of("a/b/c"))
    for above in ("a", "a/b"):
        with pytest.raises(StateConflict, match="the branch a/b/c exists"):
            begin(names, row_of(above))
    others = ["a-b", "a/b-c", "a/b/c0", "a/b0", "a0", "ab"]
    for other in others:
        begin(names, row_of(other))
    assert sorted(names.refs()) == sorted([*others, "a/b/c"])


def test_branches_and_checkpoints_share_one_name_space(names: Names) -> None:
    capture = begin_and_end(names)
    name_it(names, "warm", capture)
    with pytest.raises(StateConflict, match="there is a checkpoint of this name"):
        begin(names, row_of("warm"))
    with pytest.raises(StateConflict, match="there is a branch of this name"):
        name_it(names, "main", capture)
    with pytest.raises(StateConflict, match="the checkpoint warm exists"):
        begin(names, row_of("warm/er"))
    assert names.names_of(capture.id) == ["main", "warm"]


def test_a_branch_may_have_checkpoints_below_its_name(names: Names) -> None:
    warm, other = begin_and_end(names), begin_and_end(names, "fix")
    name_it(names, "warm", warm)
    name_it(names, "fix/warm", other)
    name_it(names, "new/warm", other)
    begin(names, row_of("new"))
    for kind, taken in (("branch", "fix/more"), ("checkpoint", "warm/er"), ("branch", "warm/er")):
        with pytest.raises(StateConflict, match=f"the (branch|checkpoint) {taken.split('/')[0]} exists"):
            names.check_new(taken, kind)
    assert [forks_prefix(names, name) for name in ("warm", "fix/warm", "try/warm")] == ["warm", "fix-warm", "try/warm"]


def test_a_name_is_looked_up_on_its_branch_first(names: Names) -> None:
    warm, other, third = (begin_and_end(names, branch) for branch in ("main", "fix", "third"))
    name_it(names, "warm", warm)
    name_it(names, "fix/warm", other)
    name_it(names, "main/own", other)  # not taken on main
    name_it(names, "own", third)
    name_it(names, f"fix/{warm.id[:8]}", other)
    name_it(names, "fix/main", other)
    found = {
        ("warm", None): warm,
        ("warm", "main"): warm,
        ("warm", "fix"): other,
        ("warm", "nosuch"): warm,
        ("fix/warm", "main"): other,
        ("main/warm", "fix"): warm,
        ("own", "main"): third,
        ("third/own", None): third,
        ("third/own", "main"): third,
        ("main", "fix"): warm,
        (warm.id, "fix"): warm,
        (warm.id[:8], "fix"): warm,
    }
    assert {asked: names.find(*asked) for asked in found} == found
    for unknown in ("fix/nosuch", "main/own/er", "nosuch/warm"):
        assert names.meant(unknown, "main") == unknown


def test_a_change_that_fails_halfway_is_rolled_back(names: Names) -> None:
    row = row_of("main")
    begin(names, row)
    capture = capture_of(row)
    with contextlib.suppress(RuntimeError), names.change("checkpoint") as change:
        change.add(capture)
        change.advance("main", capture.id)
        raise RuntimeError
    assert names.captures() == []
    assert names.operations(1)[0].verb == "start"


def test_a_prefix_that_two_captures_share_is_refused(names: Names) -> None:
    for number in range(2):
        row = row_of(f"b{number}")
        begin(names, row)
        end(names, row, capture_of(row, f"abcd{number}" + "0" * 27))
    with pytest.raises(UnknownName, match="several captures"):
        names.resolve("abcd")
    assert names.resolve("abcd1").branch == "b1"


@pytest.mark.parametrize("text", ["nothing", "abc", "ffff", "*", "a*", "'; DROP TABLE live; --"])
def test_an_unknown_name_is_refused(names: Names, text: str) -> None:
    with pytest.raises(UnknownName):
        names.resolve(text)


def test_a_branch_without_a_capture_cannot_be_resolved(names: Names) -> None:
    begin(names, row_of("main"))
    with pytest.raises(UnknownName, match="nothing has been captured"):
        names.resolve("main")


def test_a_log_entry_has_the_moves_of_its_transaction(names: Names) -> None:
    capture = begin_and_end(names)
    ended, started = names.operations()
    assert (started.verb, started.sessions) == ("start", {"main": (False, True)})
    assert started.moves["main"].before is None
    assert (ended.verb, ended.sessions) == ("end", {"main": (True, False)})
    after = ended.moves["main"].after
    assert after is not None
    assert after.capture == capture.id
    assert names.operation(ended.number) == ended


def test_an_operation_counts_as_undone_until_its_undo_is_undone(names: Names) -> None:
    begin(names, row_of("main"))
    (first,) = names.operations()
    for undone in (first.number, first.number + 1):
        with names.change("undo") as change:
            change.undo(undone)
    assert [operation.undone for operation in names.operations()] == [False, True, False]


def test_a_failing_listener_does_not_undo_a_committed_change(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(operation: Operation) -> None:
        raise ValueError(f"secret of {operation.verb}")

    names.on_operation = refuse
    row = row_of("main")
    begin(names, row)
    assert [live.session for live in names.live()] == [row.session]
    assert [operation.verb for operation in names.operations()] == ["start"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "ValueError" in said
    assert "in refuse" in said
    assert "secret of start" not in said


_WRITER = """
import sys
from pathlib import Path
from tests.records.test_names_store import begin, capture_of, end, row_of
from waypoint.records.names import Names
from waypoint.records.reading import forks_prefix
names = Names(Path(sys.argv[1]))
number = 0
while True:
    row = row_of(f"b{number}")
    begin(names, row)
    print("begun", number, flush=True)
    end(names, row, capture_of(row))
    print("ended", number, flush=True)
    number += 1
"""


def test_acknowledged_changes_survive_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "names.db"
    argv = [sys.executable, "-c", _WRITER, str(path)]
    for _kill in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _line in range(31)]
            os.kill(writer.pid, signal.SIGKILL)
            said += writer.stdout.readlines()
        names = Names(path)
        known = {name for name, ref in names.refs().items() if ref.capture}
        live = {row.branch for row in names.live()}
        ended = {f"b{line.split()[1].decode()}" for line in said if line.startswith(b"ended")}
        begun = {f"b{line.split()[1].decode()}" for line in said if line.startswith(b"begun")}
        names.close()
        assert ended <= known
        assert begun <= known | live


def test_an_id_is_disposable_before_a_record_has_it_and_after_the_record_is_removed(names: Names) -> None:
    row, capture_id = row_of("main"), new_id()
    with names.change("capture") as change:
        change.add_disposable(capture_id)
    begin(names, row)
    assert names.disposable() == {capture_id}
    end(names, row, capture_of(row, capture_id))
    assert names.disposable() == {row.session, row.tree}
    with names.change("sweep") as change:
        opened = change.begin_sweep().opened
    assert (names.disposable(), names.identity().opened) == (set(), opened)
