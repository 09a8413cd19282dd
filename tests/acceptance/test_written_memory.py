"""Memory that was not written since the last checkpoint is not dumped again, and each checkpoint has all of it."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.answers import unusual
from tests.homes import Home
from waypoint.client.sdk import Session
from waypoint.linux.tasks import write_tracking
from waypoint.processes.copied_memory import LARGE_BYTES

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

FOLDER = "/tmp/memory"


@pytest.fixture
def session(home: Home, person: Person) -> Iterator[Session]:
    """A session with the program memory_writer.py."""
    with started(home, person.name) as made:
        program = Path(__file__).with_name("memory_writer.py").read_bytes()
        made.run("sh", "-c", f"mkdir {FOLDER}; cat >{FOLDER}/program.py", stdin=program)
        made.exec(f"python3 {FOLDER}/program.py {FOLDER} </dev/null >{FOLDER}/log 2>&1 &")
        in_process(made, f"until [ -p {FOLDER}/first-ask -o -s {FOLDER}/log ]; do sleep 0.02; done")
        assert in_process(made, f"cat {FOLDER}/log") == ""
        yield made


def ask(session: Session, word: str, which: str = "first") -> dict[str, str]:
    """Let the program do something, and return the digests of its memory."""
    ask, answer = f"{FOLDER}/{which}-ask", f"{FOLDER}/{which}-answer"
    asking = f"until [ -p {ask} ]; do sleep 0.02; done; echo {word} >{ask}; cat {answer}"
    said = in_process(session, f"timeout 60 sh -c '{asking}'")
    found: dict[str, str] = json.loads(said)
    return found


def checkpoint(session: Session, home: Home) -> tuple[str, list[os.stat_result]]:
    """Take a checkpoint. Return its name, and the files of its parent images; its other images are small."""
    name = new_name(session)
    taken = session.checkpoint(name, tier="live", anew=True)
    assert unusual(taken.degraded) == []
    images = home.path / "hot" / taken.capture / "images"
    if write_tracking.is_supported():
        assert sum(path.stat().st_size for path in images.glob("pages-*")) < LARGE_BYTES
    return name, [path.stat() for path in (images / "parent").glob("pages-*")]


def test_each_checkpoint_of_a_chain_has_the_memory_of_its_moment(home: Home, session: Session) -> None:
    taken = [(checkpoint(session, home), {"first": ask(session, "report")})]
    for word in ("change", "change_again", "report"):
        state = {"first": ask(session, word)}
        state["child"] = ask(session, "report", "child")
        taken.append((checkpoint(session, home), state))
    states = [state for _, state in taken]
    assert states[0] != states[1] != states[2] == states[3]
    if write_tracking.is_supported():
        parents = [{file.st_ino for file in parent} for (_, parent), _ in taken]
        assert all(parents[0] & parent for parent in parents)
        assert max(file.st_size for file in taken[0][0][1]) > LARGE_BYTES / 2
    stored = [name for (name, _), _ in taken[::2]]
    for (name, _), state in taken:
        if name in stored:
            home.must("evict", name)
        copy = restore_as(home, session, name, "fork")
        assert {which: ask(copy, "report", which) for which in state} == state
        copy.stop(discard=True)
    assert {which: ask(session, "report", which) for which in states[-1]} == states[-1]


@pytest.mark.parametrize("answers", ["first", "last"])
def test_a_replaced_session_shares_the_memory_of_its_last_checkpoint(
    home: Home, session: Session, answers: str
) -> None:
    """CRIU dumps it before the restore answers if it has a removed file open, otherwise after that."""
    first, before = checkpoint(session, home)
    if answers == "last":
        session.exec(f"exec 9<>{FOLDER}/gone; rm {FOLDER}/gone")
    state = ask(session, "change_again")
    replaced = session.restore(first).replaced
    assert replaced is not None
    home.must("undo", "-b", session.branch)
    assert ask(session, "report") == state
    images = home.path / "hot" / replaced["capture"] / "images"
    if write_tracking.is_supported():
        assert {file.st_ino for file in before} & {path.stat().st_ino for path in (images / "parent").glob("pages-*")}
        assert sum(path.stat().st_size for path in images.glob("pages-*")) < LARGE_BYTES


@pytest.mark.soak(part="criu")
def test_a_killed_daemon_or_another_program_makes_the_next_dump_whole(home: Home, session: Session) -> None:
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    _, before = checkpoint(session, home)
    states = [ask(session, "change")]
    os.kill(daemon, signal.SIGKILL)
    taken = [checkpoint(session, home)]
    in_process(session, f"echo execute >{FOLDER}/first-ask; until [ -e {FOLDER}/executed ]; do sleep 0.02; done")
    states.append(ask(session, "report"))
    taken.append(checkpoint(session, home))
    assert not {file.st_ino for file in before} & {file.st_ino for _, parent in taken for file in parent}
    for (name, _), state in zip(taken, states, strict=True):
        copy = restore_as(home, session, name, "fork")
        assert ask(copy, "report") == state
        copy.stop(discard=True)


KINDS = {  # functions of memory_kinds.py, and whether their memory is copied before the pause; None: either
    "plain": True,
    "pieces": True,
    "guards": True,
    "grown": True,
    "asynchronous": False,
    "in_file": True,
    "filtered": True,
    "writing": None,
    "poked": True,
}


@pytest.mark.soak(part="criu")
@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_many_kinds_keep_all_their_memory(home: Home, person: Person, kind: str) -> None:
    def ask(session: Session, word: str) -> str:
        asking = f"echo {word} >{FOLDER}/{kind}-ask; cat {FOLDER}/{kind}-answer"
        return in_process(session, f"timeout 60 sh -c '{asking}' || cat {FOLDER}/log")

    with started(home, person.name) as session:
        session.exec(f"mkdir {FOLDER}")
        for name in ("memory_writer.py", "memory_kinds.py"):
            program = Path(__file__).with_name(name).read_bytes()
            session.run("sh", "-c", f"cat >{FOLDER}/{name}", stdin=program)
        session.exec(f"python3 {FOLDER}/memory_kinds.py {kind} {FOLDER} </dev/null >{FOLDER}/log 2>&1 &")
        in_process(session, f"until [ -e {FOLDER}/{kind}-ready -o -s {FOLDER}/log ]; do sleep 0.02; done")
        assert in_process(session, f"cat {FOLDER}/log") == ""
        taken = []
        for word in ("report", "change", "change"):
            state, name = ask(session, word), new_name(session)
            capture = session.checkpoint(name, tier="live", anew=True)
            assert unusual(capture.degraded) == []
            images = home.path / "hot" / capture.capture / "images"
            dumped = sum(path.stat().st_size for path in images.glob("pages-*"))
            taken.append((name, state, dumped < LARGE_BYTES))
        assert len({state for _, state, _ in taken}) > 1
        if KINDS[kind] is not None and write_tracking.is_supported():
            assert [is_copied for _, _, is_copied in taken] == [KINDS[kind]] * 3
        for name, state, _ in taken:
            copy = restore_as(home, session, name, "fork")
            assert ask(copy, "report") == state
            assert json.loads(ask(copy, "change"))
            copy.stop(discard=True)
        assert ask(session, "report") == taken[-1][1]
