"""Hooks inside a session: they run before and after checkpoints and in copies, with a time limit; failures are
reported.
"""

import pytest

from tests.acceptance.restoring import new_name, started
from tests.acceptance.sessions import inside
from tests.answers import texts, unusual
from tests.collecting import collecting
from tests.homes import Home
from waypoint.client import Client, Session
from waypoint.service import session_hooks

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

LOG = "/srv/hooks"


def put(session: Session, moment: str, name: str, script: str) -> None:
    place = f"/etc/waypoint/hooks/{moment}.d"
    words = f"mkdir -p {place}; cat >{place}/{name}; chmod 755 {place}/{name}"
    assert session.run("sh", "-c", words, stdin=f"#!/bin/sh\n{script}\n".encode()).exit == 0


def note_all(session: Session) -> None:
    for moment in ("pre-checkpoint", "post-checkpoint", "post-restore"):
        for name in ("2-second", "1-first"):
            put(session, moment, name, f"echo $WAYPOINT_HOOK {name} >>{LOG}")


def log_of(session: Session) -> list[str]:
    return session.run("cat", LOG).stdout.decode().splitlines()


def both(moment: str) -> list[str]:
    return [f"{moment} 1-first", f"{moment} 2-second"]


def test_hooks_run_in_order_before_and_after_operations(home: Home) -> None:
    with started(home, "root") as session:
        note_all(session)
        name = new_name(session)
        assert unusual(session.checkpoint(name, tier="live").degraded) == []
        before, after = both("pre-checkpoint"), both("post-checkpoint")
        assert log_of(session) == before + after
        first, second = Client(home.path).fork(name, f"{session.branch}-1", f"{session.branch}-2")
        assert log_of(first) == log_of(second) == before + both("post-restore")
        session.restore(name)
        assert log_of(session) == before + both("post-restore")
        (copy,) = Client(home.path).fork(session.branch, f"{session.branch}-3")
        assert log_of(copy) == before + both("post-restore") + before + both("post-restore")


def test_a_failing_hook_is_reported_and_the_operation_continues(home: Home) -> None:
    with started(home, "root") as session:
        put(session, "pre-checkpoint", "fails", "echo no flush >&2; exit 3")
        put(session, "post-checkpoint", "lost", "exit 4")
        put(session, "post-restore", "gone", "exit 1")
        session.run("sh", "-c", "cd /etc/waypoint/hooks/pre-checkpoint.d; echo x >no-program; ln -s /nowhere broken")
        name = new_name(session)
        taken = session.checkpoint(name, tier="live")
        assert texts(taken.degraded) == [
            "the hook pre-checkpoint.d/broken ended with 127: waypoint: /etc/waypoint/hooks/pre-checkpoint.d/broken: "
            "the session has no such program",
            "the hook pre-checkpoint.d/fails ended with 3: no flush",
            "the hook post-checkpoint.d/lost ended with 4",
        ]
        said = "degraded: the hook pre-checkpoint.d/fails ended with 3: no flush"
        assert said in home.must("checkpoint", f"{name}-2", "-b", session.branch).stderr.splitlines()
        assert said.replace(": ", "     ", 1) in home.must("show", name).stdout.splitlines()
        restored = session.restore(name)
        assert "the hook post-restore.d/gone ended with 1" in texts(restored.degraded)


@pytest.mark.soak(part="timing")
def test_a_hook_that_does_not_end_is_killed(home: Home) -> None:
    with started(home, "root") as session:
        put(session, "pre-checkpoint", "slow", f"sleep 1000 & echo begun >>{LOG}; wait")
        put(session, "pre-checkpoint", "then", f"echo then >>{LOG}")
        taken = session.checkpoint(new_name(session), tier="live")
        assert texts(taken.degraded) == [
            f"the hook pre-checkpoint.d/slow was killed: it took longer than {session_hooks.HOOKS_S:.1f} s",
            f"the hook pre-checkpoint.d/then was not run: the hooks before it took {session_hooks.HOOKS_S:g} s",
        ]
        assert log_of(session) == ["begun"]
        assert session.run("pgrep", "-x", "sleep").exit == 1


def test_a_hook_folder_that_is_no_folder_is_reported_or_ignored(home: Home) -> None:
    place = "/etc/waypoint/hooks/pre-checkpoint.d"
    with collecting() as row, started(home, "root") as session:
        for thing in ("ln -s /proc", "mkfifo", "echo x >", "mkdir", "ln -s pre-checkpoint.d"):
            with row(thing):
                words = f"rm -rf /etc/waypoint/hooks; mkdir -p /etc/waypoint/hooks; {thing} {place}"
                assert session.run("sh", "-c", words).exit == 0
                degraded = session.checkpoint(new_name(session), tier="live").degraded
                problems = ["hooks-not-run"] if thing.startswith("ln") else []
                assert [one["code"] for one in unusual(degraded)] == problems


@pytest.mark.parametrize("moment", ["pre-checkpoint", "post-checkpoint"])
def test_a_hook_cannot_start_the_operation_that_runs_it(home: Home, moment: str) -> None:
    with started(home, "root") as session:
        name = new_name(session)
        put(session, moment, "again", f"waypoint checkpoint {name} --force || exit 4")
        (said,) = texts(session.checkpoint(f"{name}-1", tier="files").degraded)
        assert said.startswith(f"the hook {moment}.d/again ended with 4: waypoint: cannot checkpoint branch ")
        assert said.endswith("the session's hooks are running next: run the command again when they have ended")
        put(session, moment, "again", "exit 0")
        assert inside(home, session.branch, f"waypoint checkpoint {name} --tier files").startswith("checkpointed")


def test_hooks_may_have_unusual_names(home: Home) -> None:
    with started(home, "root") as session:
        place = "/etc/waypoint/hooks/pre-checkpoint.d"
        names = r"for n in '\377' '\033]0;x'; do f=$(printf $n); printf '#!/bin/sh\nexit 3' >$f; chmod 755 $f; done"
        words = f"mkdir -p {place}; cd {place}; {names}"
        assert session.run("bash", "-c", words).exit == 0
        first, second = texts(session.checkpoint(new_name(session), tier="files").degraded)
        assert first.startswith("the hook pre-checkpoint.d/?]0;x ended with 3")
        assert second == "the hook pre-checkpoint.d/\\udcff was not run: its name is not UTF-8"


def test_a_folder_with_too_many_hooks_is_reported(home: Home) -> None:
    with started(home, "root") as session:
        place = "/etc/waypoint/hooks/pre-checkpoint.d"
        assert session.run("sh", "-c", f"mkdir -p {place}; cd {place}; seq 1025 | xargs touch").exit == 0
        said = (
            "the hooks of pre-checkpoint were not run: their folder could not be read: there are more than 1024 files"
        )
        assert texts(session.checkpoint(new_name(session), tier="live").degraded) == [said]
