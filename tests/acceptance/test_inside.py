"""`waypoint` inside a session: its processes call it, and every copy of the session gets an answer."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.collecting import collecting
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.linux.storage import idmapped
from waypoint.model.verbs.table import INSIDE

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture(params=[pytest.param("root", marks=pytest.mark.soak(part="matrix")), "person"])
def branch(home: Home, person: Person, request: pytest.FixtureRequest) -> Iterator[str]:
    with session(home, "root" if request.param == "root" else person.name) as name:
        yield name


def test_checkpoint_prints_checkpointed_in_the_original_and_restored_in_copies(home: Home, branch: str) -> None:
    said = inside(home, branch, f"X=before; out=$(waypoint checkpoint {branch}-cp -m note); echo $? $out; X=after")
    capture = re.fullmatch(rf"0 checkpointed {branch}-cp ([0-9a-f]{{32}}) live paused \d+ ms\n", said)
    assert capture, said
    home.must("fork", f"{branch}-cp", f"{branch}-1", f"{branch}-2")
    for copy in (f"{branch}-1", f"{branch}-2"):
        assert inside(home, copy, "echo $out; echo $X") == f"restored {copy} {capture[1]}\nafter\n"
        home.must("stop", copy, "--discard")
    home.must("restore", f"{branch}-cp", "-b", branch)
    assert inside(home, branch, "echo $out") == f"restored {branch} {capture[1]}\n"


def test_removed_files_of_waypoint_are_reported_inside(home: Home, branch: str) -> None:
    inside(home, branch, "kept=yes; rm -rf /run/waypoint/*")
    done = home.cli("exec", "-b", branch, "--timeout", "30", "--", f"waypoint checkpoint {branch}-cp")
    assert done.code == 125, done
    said, next_step = done.stdout.splitlines()  # the terminal's output includes stderr
    assert said.endswith("/run/waypoint/bell is missing: Waypoint's files were removed from this session")
    assert next_step == "  next: ask outside of the session; its shell and files are as they were"
    home.must("checkpoint", "-b", branch, f"{branch}-cp")
    assert inside(home, branch, "echo $kept") == "yes\n"


def test_other_users_inside_a_session_are_refused(home: Home) -> None:
    with session(home, "root") as branch:
        ask = f"waypoint checkpoint {branch}-cp"
        refused = home.cli("exec", "-b", branch, "--", f"kept=yes; setpriv --reuid nobody --clear-groups {ask}")
        assert (refused.code, "Permission denied" in refused.stdout) == (125, True), refused
        assert "\n  next: be the user whose session it is; on a full disk make room\n" in refused.stdout
        inside(home, branch, ask)
        assert inside(home, branch, "echo $kept") == "yes\n"


def test_after_all_files_of_waypoint_were_removed_a_new_shell_works(home: Home) -> None:
    with session(home, "root") as branch:
        inside(home, branch, "echo kept >/srv/kept; rm -rf /.waypoint /run/waypoint")
        assert inside(home, branch, "echo served") == "served\n"  # the folder is made again
        home.must("stop", "--files", branch)
        home.must("shell", branch, "-d")
        assert (
            inside(home, branch, f"cat /srv/kept; waypoint checkpoint {branch}-cp >/dev/null && echo asked")
            == "kept\nasked\n"
        )


def test_a_fork_of_the_own_branch_returns_in_the_original_and_in_each_copy(home: Home, branch: str) -> None:
    said = inside(home, branch, f"waypoint fork {branch} {branch}-1 {branch}-2 > /tmp/said; cat /tmp/said")
    assert said == f"{branch}-1\n{branch}-2\n"
    for copy in (f"{branch}-1", f"{branch}-2"):
        assert re.fullmatch(rf"restored {copy}  [0-9a-f]{{32}}\n", inside(home, copy, "cat /tmp/said"))
        home.must("stop", copy, "--discard")


def test_a_restore_from_inside_replaces_the_process_that_asked(home: Home, branch: str) -> None:
    inside(home, branch, f"n=one; echo one > /tmp/file; waypoint checkpoint {branch}-cp")
    inside(home, branch, "n=two; echo two > /tmp/file")
    done = home.cli("exec", "-b", branch, "--", f"waypoint restore {branch}-cp; echo not reached")
    assert (done.code, done.stdout) == (125, "")
    assert "a capture was restored in its place" in done.stderr
    assert inside(home, branch, "echo $n; cat /tmp/file") == "one\none\n"


def test_a_process_without_a_terminal_can_checkpoint_its_session(home: Home, branch: str) -> None:
    done = home.must("run", "-b", branch, "--", "sh", "-c", f"waypoint checkpoint {branch}-cp && waypoint log")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"checkpointed {branch}-cp  ")
    assert f"{branch}-cp" in second


def test_a_session_sees_the_history_of_its_own_branch_and_nothing_else(home: Home, branch: str) -> None:
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        for words in (f"restore {other}-cp", f"fork {other}-cp {branch}-x", f"fork {other} {branch}-x", f"log {other}"):
            done = home.cli("exec", "-b", branch, "--", f"waypoint {words}")
            assert done.code == 2
            assert f"it is not in the history of {branch}" in done.stdout
        assert f"{other}-cp" not in inside(home, branch, "waypoint log")
        assert inside(home, branch, "waypoint status").splitlines()[0] == f"branch {branch}"


def test_wrong_usage_inside_is_reported_with_its_code(home: Home, own: str) -> None:
    with collecting() as row:
        for command, code, said in (
            ("nonsense", 2, "inside a session the commands are checkpoint, point, restore,"),
            ("", 2, "Usage: waypoint COMMAND"),
            ("restore", 2, "NAME is missing"),
            ("checkpoint a b", 2, "too many arguments"),
            ("checkpoint 'bad name'", 2, "only letters, digits"),
            ("checkpoint x --park", 2, "there is no such option"),
            ("checkpoint x --tier gold", 2, "is not one of auto, live, respawn, files"),
            ("restore nothing-like-it", 2, "it is not in the history of"),
            ("fork", 2, "NAME is missing"),
            ("log -n many", 2, "is not a whole number from 1 to 256"),
            ("undo 99999", 2, "has this number"),
            ("checkpoint --help", 0, "--force"),
            ("undo --help", 0, "waypoint op log"),
            ("--help", 0, "  undo  "),
        ):
            with row(command):
                done = home.cli("exec", "-b", own, "--", f"waypoint {command}")
                assert done.code == code
                assert said in done.stdout
        for words in ("show nosuch", "nonsense", "restore", "undo 99999", "ps --nosuch"):
            with row(f"{words} --json"):
                done = home.cli("exec", "-b", own, "--", f"waypoint {words} --json 2>/dev/null")
                assert done.code == done.json()["error"]["exit"] == 2
                assert set(done.json()["error"]) == {"code", "exit", "tried", "on", "said", "next"}


def test_verbs_inside_work_for_the_own_branch_only(home: Home, branch: str) -> None:
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        inside(home, branch, f"waypoint checkpoint {branch}-cp -m note")
        assert f"names        {branch}, {branch}-cp" in inside(home, branch, f"waypoint show {branch}-cp")
        [row] = json.loads(inside(home, branch, "waypoint ps --json"))
        assert (row["branch"], row["state"]) == (branch, "live")
        assert "waypoint ps" in inside(home, branch, "waypoint logs")
        entries = json.loads(inside(home, branch, "waypoint op log --json"))
        assert [one["verb"] for one in entries] == ["checkpoint", "start"]
        foreign = home.must("op", "log", "--json").json()
        number = next(one["number"] for one in foreign if f"{other}-cp" in one["moves"])
        for words in (f"show {other}-cp", f"undo {number}", f"stop {other}", f"logs {other}", f"undo -b {other}"):
            assert home.cli("exec", "-b", branch, "--", f"waypoint {words}").code == 2, words
        assert inside(home, branch, "waypoint undo").startswith(
            f"undo of operation {entries[0]['number']} (checkpoint)"
        )
        refused = home.cli("exec", "-b", branch, "--", "waypoint undo")
        assert (refused.code, "no operation is left" in refused.stdout) == (
            4,
            True,
        )  # the start of this session is left alone
        assert home.must("show", f"{other}-cp").code == 0


def test_an_undo_from_inside_that_replaces_the_session_is_recorded_as_undo(home: Home, branch: str) -> None:
    for number in (1, 2, 3):
        inside(home, branch, f"echo {number} > ~/file; waypoint checkpoint {branch}-{number}")
    home.must("restore", f"{branch}-1", "-b", branch)
    restored = home.must("op", "log", "-n", "1", "--json").json()[0]["number"]

    def newest() -> tuple[str, int | None]:
        [one] = home.must("op", "log", "-n", "1", "--json").json()
        return one["verb"], one["undoes"]

    # The undo replaces the session that called it, so the call gets no answer.
    home.cli("run", "-b", branch, "--", "waypoint", "undo")
    wait_until(lambda: newest() == ("undo", restored), "the undo is recorded")
    assert inside(home, branch, "cat ~/file") == "3\n"
    entries = {one["number"]: one for one in json.loads(inside(home, branch, "waypoint op log --json"))}
    assert entries[restored]["undone"]
    said = inside(home, branch, "waypoint undo")  # undoes the operation before
    assert re.match(rf"undo of operation \d+ \(checkpoint\): .*remove the name {branch}-3\n", said), said
    assert inside(home, branch, "cat ~/file") == "3\n"


def test_a_session_that_stops_itself_with_a_checkpoint_continues_where_it_was(home: Home, own: str) -> None:
    done = home.cli("exec", "-b", own, "--", f"x=1; out=$(waypoint stop --checkpoint {own}-cp); x=2")
    assert done.code == 125
    assert own not in [one["branch"] for one in home.must("ps", "--json").json()]
    home.must("shell", own, "-d")
    assert re.fullmatch(rf"2 restored {own} [0-9a-f]{{32}}\n", inside(home, own, "echo $x $out"))


def test_json_output_inside_equals_that_outside(home: Home, own: str) -> None:
    """Commands that change the branch run with different names inside and outside, so only their keys are compared."""
    home.must("checkpoint", f"{own}-cp", "-b", own, "-m", "ümlaut \x7f\u2028")
    number = json.loads(inside(home, own, "waypoint op log -n 1 --json"))[0]["number"]
    pairs = [
        (f"show {own}-cp", f"show {own}-cp"),
        ("log", f"log -b {own}"),
        ("op log -n 1", "op log -n 1"),
        (f"checkpoint {own}-in", f"checkpoint {own}-out -b {own}"),
        (f"fork {own}-cp {own}-1", f"fork {own}-cp {own}-2"),
        (f"restore {own}-cp --new {own}-3", f"restore {own}-cp --new {own}-4"),
        (f"undo {number}", None),
        ("ps", "ps"),
        ("status", None),
        ("show nosuch", None),
    ]
    for within, outside in pairs:
        words = within.split()
        said = home.cli("exec", "-b", own, "--", f"waypoint {within} --json 2>/dev/null").stdout
        assert said == f"{json.dumps(json.loads(said))}\n", within
        if outside is None:
            continue
        known = home.must(*outside.split(), "--json")
        if words[0] in ("show", "log", "op"):
            assert said == known.stdout, within
        else:
            first, second = (
                found[0] if isinstance(found, list) else found for found in (json.loads(said), known.json())
            )
            assert list(first) == [key for key in second if key in first], within
    for number in range(1, 5):
        home.must("stop", f"{own}-{number}", "--discard")


def test_a_waypoint_of_the_machine_becomes_the_sessions_own_command(home: Home, own: str) -> None:
    for words in ("status", "op log -n 1 --json", "__complete sta"):
        machines = shlex.join(home.argv(*words.split()))
        assert inside(home, own, machines) == inside(home, own, f"waypoint {words}")
    refused = home.cli("exec", "-b", own, "--", shlex.join(home.argv("gc")))
    assert (refused.code, "cannot be reached from inside a session" in refused.stdout) == (3, True), refused


def test_a_request_that_is_too_long_can_be_made_outside(home: Home, own: str) -> None:
    for message in ("long" * 1020, "one\n\ntwo\x0c\u2028three\n"):
        words = f"waypoint checkpoint {own}-cp --force -m {shlex.quote(message)}"
        done = home.cli("exec", "-b", own, "--", words)
        if len(message) > 1000:
            assert done.code == 2
            assert "next: shorten it, or run the command outside the session" in done.stdout
            home.must("checkpoint", f"{own}-cp", "-b", own, "-m", message)
        assert home.must("show", f"{own}-cp", "--json").json()["message"] == message
    inside(home, own, f"waypoint checkpoint {own}-short -m {'long' * 750}")


def test_tab_offers_what_works_inside(home: Home, own: str) -> None:
    def offered(words: str) -> list[str]:
        kind, *lines = inside(home, own, f"waypoint __complete {words}").splitlines()
        assert kind == ""
        return [line.partition("\t")[0] for line in lines]

    assert offered("''") == [verb.name.split()[0] for verb in INSIDE]
    assert offered("op ''") == ["log"]
    assert offered("fork --") == ["--count", "--prefix", "--tier", "--json", "--help"]
    assert offered("checkpoint --tier=l") == ["--tier=live"]
    home.must("shell", f"{own}-other", "-d")
    home.must("checkpoint", f"{own}-theirs", "-b", f"{own}-other")
    inside(home, own, f"waypoint checkpoint {own}-mine")
    assert offered(f"restore {own}-") == [f"{own}-mine"]


def test_an_answer_longer_than_a_pipe_arrives_whole(home: Home, own: str) -> None:
    inside(home, own, "seq 20000")  # 109 KB on the terminal
    assert inside(home, own, "waypoint logs | grep -c '^[0-9]*.$'; waypoint logs | tail -c 300000 | wc -c").startswith(
        "20000"
    )


def test_errors_inside_equal_those_outside(home: Home, own: str) -> None:
    for template in ("fork {0}", "fork {0} {0}-x -n 2", "fork {0} {0}-x --prefix p", "fork {0} {0}-x {0}"):
        words = template.format(own)
        outside = home.cli(*words.split())
        found = home.cli("exec", "-b", own, "--", f"waypoint {words}")
        assert outside.stderr.startswith("waypoint: cannot ")
        assert (found.code, found.stdout) == (outside.code, outside.stderr), words


def test_a_taken_name_is_refused_and_force_moves_it(home: Home, own: str) -> None:
    inside(home, own, f"waypoint checkpoint {own}-cp")
    done = home.cli("exec", "-b", own, "--", f"waypoint checkpoint {own}-cp")
    assert done.code == 4
    assert "there is a checkpoint of this name" in done.stdout
    assert inside(home, own, f"waypoint checkpoint {own}-cp --force").startswith("checkpointed")


def test_a_request_that_a_killed_daemon_has_not_read_is_served_by_the_next_daemon(home: Home, own: str) -> None:
    inside(home, own, f"(until [ -e /tmp/go ]; do sleep 0.05; done; waypoint checkpoint {own}-late > /tmp/late) &")
    (pid,) = (one["pid"] for one in home.must("ps", "--json").json() if one["branch"] == own)
    root = Path(f"/proc/{pid}/root")
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    os.kill(daemon, signal.SIGSTOP)
    with idmapped.acting_as(root.stat().st_uid, root.stat().st_gid):
        (root / "tmp/go").touch()
    wait_until(lambda: any((root / "run/waypoint").glob("r.*")), "the session has sent its request")
    os.kill(daemon, signal.SIGKILL)
    assert inside(home, own, "wait; cat /tmp/late").endswith(" ms\n")


def test_requests_leave_no_files(home: Home, own: str) -> None:
    inside(home, own, f"waypoint status; waypoint checkpoint {own}-cp; waypoint nonsense 2>/dev/null; waypoint log")
    left = inside(home, own, "ls /run/waypoint").split()
    assert [name for name in left if re.match(r"[artw]\.", name)] == []


@pytest.fixture
def own(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


def test_a_session_cannot_replace_a_checkpoint_of_another_branch(home: Home, branch: str) -> None:
    """This includes the branch from which the session was forked."""
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        home.must("fork", f"{branch}-cp", f"{branch}-fork")
        before = {name: home.must("show", name, "--json").json()["capture"] for name in (f"{other}-cp", f"{branch}-cp")}
        for asker, name in ((branch, f"{other}-cp"), (f"{branch}-fork", f"{branch}-cp")):
            refused = home.cli("exec", "-b", asker, "--", f"waypoint checkpoint --force {name}")
            assert refused.code == 4, refused
            assert "it cannot be used for something new in this session\n  next: choose" in refused.stdout
        alike = {
            home.cli("exec", "-b", branch, "--", f"waypoint checkpoint {name}").stdout.replace(name, "NAME")
            for name in (f"{other}-cp", other, f"{other}-cp/below")
        }
        assert len(alike) == 1, alike
        assert {name: home.must("show", name, "--json").json()["capture"] for name in before} == before
        assert inside(home, branch, f"waypoint checkpoint --force {branch}-cp").startswith("checkpointed")
        home.must("stop", f"{branch}-fork", "--discard")


def test_operations_on_other_branches_cannot_be_undone_from_inside(home: Home, branch: str) -> None:
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", "--force", f"{other}-cp", "-b", branch)
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "--anew")
        taking, own = [one["number"] for one in home.must("op", "log", "-n", "2", "--json").json()][::-1]
        refused = home.cli("exec", "-b", branch, "--", f"waypoint undo {taking}")
        assert (refused.code, "has this number" in refused.stdout) == (2, True), refused
        assert taking not in [one["number"] for one in json.loads(inside(home, branch, "waypoint op log --json"))]
        assert f"undo of operation {own}" in inside(home, branch, f"waypoint undo {own}")


def test_a_session_does_not_see_the_names_of_its_forks(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    home.must("fork", f"{branch}-cp", f"{branch}-fork")
    home.must("stop", f"{branch}-fork", "--discard")
    home.must("fork", f"{branch}-cp", f"{branch}-fork")
    for words in ("log", "log --json", f"show {branch}-cp", "__complete restore ''"):
        said = inside(home, branch, f"waypoint {words}")
        assert (f"{branch}-cp" in said, f"{branch}-fork" in said) == (True, False), said
    home.must("stop", f"{branch}-fork", "--discard")
