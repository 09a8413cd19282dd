"""The SDK with the real daemon: checkpoints, forks and history."""

from collections.abc import Iterator

import pytest

from waypoint.client import Client, Session
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    """A live session on the branch `s`. At the end, all sessions and names are removed."""
    yield client.start("s", env={"TERM": "dumb"}, cwd="/usr")
    for one in client.sessions():
        client.session(one.branch).stop()
    names = {name for capture in client.history.log(all=True) for name in capture.names}
    names |= {branch.name for branch in client.history.branches()}
    client.history.remove(*names)


def test_a_checkpoint_is_restored_in_place(session: Session) -> None:
    session.exec("mine=before")
    made = session.checkpoint("c", message="a message")
    assert (made.name, made.tier, made.degraded) == ("c", "live", [])
    session.exec("mine=after")
    pid = session.facts.pid
    assert session.restore("c").state == "live"
    assert session.facts.pid != pid
    assert session.exec("echo $mine").output == b"before\n"


def test_a_checkpoint_can_keep_files_only_or_end_the_session(client: Client, session: Session) -> None:
    assert session.checkpoint("files", tier="files").tier == "files"
    session.exec("mine=42")
    session.checkpoint("parked", park=True)
    assert client.sessions() == []
    assert client.start("s").exec("echo $mine").output == b"42\n"


def test_a_name_moves_only_by_force(client: Client, session: Session) -> None:
    first = session.checkpoint("c")
    with pytest.raises(StateConflict):
        session.checkpoint("c")
    assert session.checkpoint("c", force=True, anew=True).capture != first.capture


def test_the_sdk_reaches_the_requested_tier(session: Session) -> None:
    assert session.checkpoint("c", tier="respawn").tier == "respawn"


def test_a_stop_may_make_a_checkpoint(client: Client, session: Session) -> None:
    session.exec("mine=42")
    stopped = session.stop(checkpoint="c")
    assert client.history.show("c").capture == stopped.capture
    assert client.history.show("c").tier == "live"


def test_forks_are_independent_sessions(client: Client, session: Session) -> None:
    session.exec("mine=42")
    session.checkpoint("c")
    named = client.fork("c", "one", "two")
    counted = client.fork("c", count=2, prefix="p")
    assert [fork.branch for fork in (*named, *counted)] == ["one", "two", "p-1", "p-2"]
    known = {one.branch: (one.id, one.pid) for one in client.sessions()}
    for fork in (*named, *counted):
        assert (fork.facts.state, (fork.facts.id, fork.facts.pid)) == ("live", known[fork.branch])
        assert fork.facts.upper_bytes is None  # fork does not measure sizes
        fork.exec(f"mine=$mine-{fork.branch}")
    assert named[1].exec("echo $mine").output == b"42-two\n"
    with pytest.raises(StateConflict):
        client.fork("c", "three", "one")
    with pytest.raises(UsageProblem):
        client.fork("c")
    assert len(client.sessions()) == 5


def test_the_log_has_captures_with_their_parents(client: Client, session: Session) -> None:
    first, second = session.checkpoint("one"), session.checkpoint("two", message="a message")
    newest, oldest = client.history.log("s")
    assert (newest.capture, newest.parents, newest.message) == (second.capture, [first.capture], "a message")
    assert (oldest.capture, oldest.parents, oldest.names) == (first.capture, [], ["one"])
    assert [one.capture for one in client.history.log("one")] == [first.capture]
    assert [one.capture for one in client.history.log("s", limit=1)] == [second.capture]
    assert {first.capture, second.capture} <= {one.capture for one in client.history.log(all=True)}
    processes = client.history.show("two").layers["processes"]
    assert processes
    assert "bash" in str(processes["programs"])


def test_names_can_contain_a_slash(client: Client, session: Session) -> None:
    session.checkpoint("a/b")
    assert client.history.show("a/b").names == ["a/b", "s"]
    assert client.history.log("a/b")
    session.stop()
    client.history.rename("s", "x/y")
    assert [branch.name for branch in client.history.branches()] == ["x/y"]


def test_branches_are_listed_renamed_and_removed(client: Client, session: Session) -> None:
    [branch] = client.history.branches()
    assert (branch.name, branch.live, branch.tip) == ("s", True, None)
    with pytest.raises(StateConflict):
        client.history.rename("s", "t")
    kept = session.stop()
    client.history.rename("s", "t")
    [branch] = client.history.branches()
    assert (branch.name, branch.live, branch.tip, branch.tier) == ("t", False, kept.capture, "files")
    client.history.remove("t")
    assert client.history.branches() == []
    client.history.undo()


def test_operations_can_be_undone(client: Client, session: Session) -> None:
    session.checkpoint("c")
    [last] = client.history.operations(limit=1)
    assert (last.verb, last.undone) == ("checkpoint", False)
    assert last.undo
    done = client.history.undo()
    assert done.undoes == last.number
    with pytest.raises(UnknownName):
        client.history.show("c")
    with pytest.raises(StateConflict):
        client.history.undo(last.number)
