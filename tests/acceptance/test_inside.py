"""`waypoint` inside a session: asked by the session's own processes, answered in every copy."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import branch_of, inside, session
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.linux.storage import idmapped
from waypoint.model.verbs.table import INSIDE

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


branch = pytest.fixture(params=["root", "person"])(branch_of)


def test_a_checkpoint_says_checkpointed_in_the_original_and_restored_in_every_copy(home: Home, branch: str) -> None:
    said = inside(home, branch, f"X=before; out=$(waypoint checkpoint {branch}-cp -m note); echo $? $out; X=after")
    capture = re.fullmatch(rf"0 checkpointed {branch}-cp ([0-9a-f]{{32}}) live paused \d+ ms\n", said)
    assert capture, said
    home.must("fork", f"{branch}-cp", f"{branch}-1", f"{branch}-2")
    for copy in (f"{branch}-1", f"{branch}-2"):
        assert inside(home, copy, "echo $out; echo $X") == f"restored {copy} {capture[1]}\nafter\n"
        home.must("stop", copy, "--discard")
    home.must("restore", f"{branch}-cp", "-b", branch)
    assert inside(home, branch, "echo $out") == f"restored {branch} {capture[1]}\n"


def test_a_word_with_newlines_is_one_word(home: Home, branch: str) -> None:
    message = "one\n\ntwo\x0c\u2028three\n"
    inside(home, branch, f"waypoint checkpoint {branch}-cp -m $'one\\n\\ntwo\\f\u2028three\\n'")
    assert home.must("show", f"{branch}-cp", "--json").json()["message"] == message


def test_whoever_removed_waypoints_files_is_told_so_and_asks_from_outside(home: Home, branch: str) -> None:
    inside(home, branch, "kept=yes; rm -rf /run/waypoint/*")
    done = home.cli("exec", "-b", branch, "--timeout", "30", "--", f"waypoint checkpoint {branch}-cp")
    assert done.code == 125, done
    said, next_step = done.stdout.splitlines()  # of the terminal, where stderr is, too
    assert said.endswith("/run/waypoint/bell is missing: Waypoint's files were removed from this session")
    assert next_step == "  next: ask outside of the session; its shell and files are as they were"
    home.must("checkpoint", "-b", branch, f"{branch}-cp")
    assert inside(home, branch, "echo $kept") == "yes\n"


def test_who_is_not_the_user_of_the_session_cannot_ask_inside(home: Home) -> None:
    with session(home, "root") as branch:
        ask = f"waypoint checkpoint {branch}-cp"
        refused = home.cli("exec", "-b", branch, "--", f"kept=yes; setpriv --reuid nobody --clear-groups {ask}")
        assert (refused.code, "Permission denied" in refused.stdout) == (125, True), refused
        assert "\n  next: be the user whose session it is; on a full disk make room\n" in refused.stdout
        inside(home, branch, ask)
        assert inside(home, branch, "echo $kept") == "yes\n"


def test_a_session_whose_root_removed_all_of_waypoints_files_goes_on_with_a_new_shell(home: Home) -> None:
    with session(home, "root") as branch:
        inside(home, branch, "echo kept >/srv/kept; rm -rf /.waypoint /run/waypoint")
        done = home.cli("exec", "-b", branch, "--", "true")
        assert (done.code, done.stdout) == (125, "")
        assert "to keep its files and begin a new shell: waypoint stop, then waypoint shell" in done.stderr
        home.must("stop", branch)
        home.must("shell", branch, "-d")
        assert (
            inside(home, branch, f"cat /srv/kept; waypoint checkpoint {branch}-cp >/dev/null && echo asked")
            == "kept\nasked\n"
        )


def test_a_fork_of_the_own_branch_returns_in_each_like_fork_2(home: Home, branch: str) -> None:
    said = inside(home, branch, f"waypoint fork {branch} {branch}-1 {branch}-2 > /tmp/said; cat /tmp/said")
    assert said == f"{branch}-1\n{branch}-2\n"
    for copy in (f"{branch}-1", f"{branch}-2"):
        assert re.fullmatch(rf"restored {copy}  [0-9a-f]{{32}}\n", inside(home, copy, "cat /tmp/said"))
        home.must("stop", copy, "--discard")


def test_a_restore_takes_back_whoever_asked_for_it(home: Home, branch: str) -> None:
    inside(home, branch, f"n=one; echo one > /tmp/file; waypoint checkpoint {branch}-cp")
    inside(home, branch, "n=two; echo two > /tmp/file")
    done = home.cli("exec", "-b", branch, "--", f"waypoint restore {branch}-cp; echo not reached")
    assert (done.code, done.stdout) == (125, "")
    assert "a capture was restored in its place" in done.stderr
    assert inside(home, branch, "echo $n; cat /tmp/file") == "one\none\n"


def test_a_process_without_a_terminal_asks_as_well(home: Home, branch: str) -> None:
    done = home.must("run", "-b", branch, "--", "sh", "-c", f"waypoint checkpoint {branch}-cp && waypoint log")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"checkpointed {branch}-cp  ")
    assert f"{branch}-cp" in second


def test_a_session_sees_the_history_of_its_own_branch_and_nothing_else(home: Home, branch: str) -> None:
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", f"{branch}-cp", "-b", branch, "-m", "red \x1b[31m\nline")
        for look in ("log", f"show {branch}-cp"):  # a message is text, for any terminal
            assert "red ?[31m?line" in inside(home, branch, f"waypoint {look}")
        for words in (f"restore {other}-cp", f"fork {other}-cp {branch}-x", f"fork {other} {branch}-x", f"log {other}"):
            done = home.cli("exec", "-b", branch, "--", f"waypoint {words}")
            assert done.code == 2
            assert f"it is not in the history of {branch}" in done.stdout
        assert f"{other}-cp" not in inside(home, branch, "waypoint log")
        assert inside(home, branch, "waypoint status").splitlines()[0] == f"branch {branch}"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("nonsense", 2, "inside a session there are checkpoint, restore,"),
        ("", 2, "Usage: waypoint COMMAND"),
        ("checkpoint", 2, "one NAME is needed, 0 were given"),
        ("checkpoint a b", 2, "one NAME is needed, 2 were given"),
        ("checkpoint 'bad name'", 2, "only letters, digits"),
        ("checkpoint x --park", 2, "it takes no such option here"),
        ("checkpoint x --tier gold", 2, "it is one of auto, live, respawn, files"),
        ("restore nothing-like-it", 2, "it is not in the history of"),
        ("fork", 2, "no NAME was given"),
        ("log -n many", 2, "a number from 1 to 256 is needed"),
        ("undo 99999", 2, "has this number"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_code(home: Home, own: str, command: str, code: int, said: str) -> None:
    done = home.cli("exec", "-b", own, "--", f"waypoint {command}")
    assert done.code == code
    assert said in done.stdout


def test_the_verbs_that_look_and_undo_work_for_the_own_branch_and_for_no_other(home: Home, branch: str) -> None:
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
        assert inside(home, branch, "waypoint undo").startswith(f"took back {entries[0]['number']} (checkpoint)")
        refused = home.cli("exec", "-b", branch, "--", "waypoint undo")
        assert (refused.code, "none is left" in refused.stdout) == (4, True)  # the start of this session is left alone
        assert home.must("show", f"{other}-cp").code == 0


def test_an_undo_from_within_that_replaces_the_session_is_an_undo_on_record(home: Home, branch: str) -> None:
    for number in (1, 2, 3):
        inside(home, branch, f"echo {number} > ~/file; waypoint checkpoint {branch}-{number}")
    home.must("restore", f"{branch}-1", "-b", branch)
    restored = home.must("op", "log", "-n", "1", "--json").json()[0]["number"]

    def newest() -> tuple[str, int | None]:
        [one] = home.must("op", "log", "-n", "1", "--json").json()
        return one["verb"], one["undoes"]

    # The session that asks is replaced: nobody is answered. Nothing else of the daemon's waits for its end, as an exec.
    home.cli("run", "-b", branch, "--", "waypoint", "undo")
    wait_until(lambda: newest() == ("undo", restored), "the undo is on record")
    assert inside(home, branch, "cat ~/file") == "3\n"
    entries = {one["number"]: one for one in json.loads(inside(home, branch, "waypoint op log --json"))}
    assert entries[restored]["undone"]
    said = inside(home, branch, "waypoint undo")  # of what was done before
    assert re.match(rf"took back \d+ \(checkpoint\): .*remove the name {branch}-3\n", said), said
    assert inside(home, branch, "cat ~/file") == "3\n"


def test_a_session_may_end_itself_and_a_parked_one_goes_on_where_it_was(home: Home, own: str) -> None:
    done = home.cli("exec", "-b", own, "--", f"x=1; out=$(waypoint stop --checkpoint {own}-cp); x=2")
    assert done.code == 125
    assert own not in [one["branch"] for one in home.must("ps", "--json").json()]
    home.must("shell", own, "-d")
    assert re.fullmatch(rf"2 restored {own} [0-9a-f]{{32}}\n", inside(home, own, "echo $x $out"))


@pytest.mark.parametrize(
    ("words", "code"), [("show nosuch", 2), ("nonsense", 2), ("checkpoint", 2), ("undo 99999", 2), ("ps --nosuch", 2)]
)
def test_errors_with_json_are_one_json_value_on_stdout(home: Home, own: str, words: str, code: int) -> None:
    done = home.cli("exec", "-b", own, "--", f"waypoint {words} --json 2>/dev/null")
    assert done.code == code
    assert set(done.json()["error"]) == {"code", "exit", "tried", "on", "said", "next"}
    assert done.json()["error"]["exit"] == code


def test_with_json_a_verb_prints_inside_what_it_prints_outside_byte_for_byte(home: Home, own: str) -> None:
    """What moves the branch is asked for on both sides with another name, so there the keys are compared."""
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


def test_a_request_that_is_too_long_can_be_made_outside(home: Home, own: str) -> None:
    message = "long" * 1200
    refused = home.cli("exec", "-b", own, "--", f"waypoint checkpoint {own}-long -m {message}")
    assert refused.code == 2
    assert "next: make it shorter, or ask from outside of the session" in refused.stdout
    home.must("checkpoint", f"{own}-long", "-b", own, "-m", message)
    assert home.must("show", f"{own}-long", "--json").json()["message"] == message
    inside(home, own, f"waypoint checkpoint {own}-short -m {message[:3000]}")


def test_tab_offers_what_works_inside(home: Home, own: str) -> None:
    def offered(words: str) -> list[str]:
        kind, *lines = inside(home, own, f"waypoint __complete {words}").splitlines()
        assert kind == ""
        return [line.partition("\t")[0] for line in lines]

    assert offered("''") == [*dict.fromkeys(verb.name.split()[0] for verb in INSIDE)]
    assert offered("op ''") == ["log"]
    assert offered("fork --") == ["--count", "--prefix", "--tier", "--json", "--help"]
    assert offered("checkpoint --tier=l") == ["--tier=live"]
    home.must("shell", f"{own}-other", "-d")
    home.must("checkpoint", f"{own}-theirs", "-b", f"{own}-other")
    inside(home, own, f"waypoint checkpoint {own}-mine")
    assert offered(f"restore {own}-") == [f"{own}-mine"]


def test_what_is_longer_than_a_pipe_arrives_whole(home: Home, own: str) -> None:
    inside(home, own, "seq 20000")  # 109 KB on the terminal
    assert inside(home, own, "waypoint logs | grep -c '^[0-9]*.$'; waypoint logs | tail -c 300000 | wc -c").startswith(
        "20000"
    )


def test_help_inside_is_that_of_the_table(home: Home, own: str) -> None:
    assert "--force" in inside(home, own, "waypoint checkpoint --help")
    assert "waypoint op log" in inside(home, own, "waypoint undo --help")
    assert "  undo  " in inside(home, own, "waypoint --help")


def test_what_is_refused_outside_is_refused_inside_with_the_same_words(home: Home, own: str) -> None:
    for template in ("fork {0}", "fork {0} {0}-x -n 2", "fork {0} {0}-x --prefix p", "fork {0} {0}-x {0}"):
        words = template.format(own)
        outside = home.cli(*words.split())
        found = home.cli("exec", "-b", own, "--", f"waypoint {words}")
        assert outside.stderr.startswith("waypoint: cannot ")
        assert (found.code, found.stdout) == (outside.code, outside.stderr), words


def test_a_taken_name_is_told_and_force_moves_it(home: Home, own: str) -> None:
    inside(home, own, f"waypoint checkpoint {own}-cp")
    done = home.cli("exec", "-b", own, "--", f"waypoint checkpoint {own}-cp")
    assert done.code == 4
    assert "there is a checkpoint of this name" in done.stdout
    assert inside(home, own, f"waypoint checkpoint {own}-cp --force").startswith("checkpointed")


def test_a_request_that_the_daemon_never_saw_is_served_by_the_next_one(home: Home, own: str) -> None:
    inside(home, own, f"(until [ -e /tmp/go ]; do sleep 0.05; done; waypoint checkpoint {own}-late > /tmp/late) &")
    (pid,) = (one["pid"] for one in home.must("ps", "--json").json() if one["branch"] == own)
    root = Path(f"/proc/{pid}/root")
    daemon = home.must("daemon", "status", "--json").json()["pid"]
    os.kill(daemon, signal.SIGSTOP)
    with idmapped.acting_as(root.stat().st_uid, root.stat().st_gid):
        (root / "tmp/go").touch()
    wait_until(lambda: any((root / "run/waypoint").glob("r.*")), "it has asked")
    os.kill(daemon, signal.SIGKILL)
    assert inside(home, own, "wait; cat /tmp/late").endswith(" ms\n")


def test_nothing_of_a_request_is_left(home: Home, own: str) -> None:
    inside(home, own, f"waypoint status; waypoint checkpoint {own}-cp; waypoint nonsense 2>/dev/null; waypoint log")
    left = inside(home, own, "ls /run/waypoint").split()
    assert [name for name in left if re.match(r"[artw]\.", name)] == []


@pytest.fixture
def own(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


def test_no_request_moves_what_belongs_to_another_branch(home: Home, branch: str) -> None:
    """Neither a checkpoint of another branch, nor one of the branch that this one was forked from."""
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        home.must("fork", f"{branch}-cp", f"{branch}-fork")
        before = {name: home.must("show", name, "--json").json()["capture"] for name in (f"{other}-cp", f"{branch}-cp")}
        for asker, name in ((branch, f"{other}-cp"), (f"{branch}-fork", f"{branch}-cp")):
            refused = home.cli("exec", "-b", asker, "--", f"waypoint checkpoint --force {name}")
            assert refused.code == 4, refused
            assert "there is a checkpoint of this name\n  next: choose another name\n" in refused.stdout
        assert {name: home.must("show", name, "--json").json()["capture"] for name in before} == before
        assert inside(home, branch, f"waypoint checkpoint --force {branch}-cp").startswith("checkpointed")
        home.must("stop", f"{branch}-fork", "--discard")


def test_what_was_done_to_other_names_cannot_be_taken_back_from_within(home: Home, branch: str) -> None:
    with session(home, "root") as other:
        home.must("checkpoint", f"{other}-cp", "-b", other)
        home.must("checkpoint", "--force", f"{other}-cp", "-b", branch)
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        taking, own = [one["number"] for one in home.must("op", "log", "-n", "2", "--json").json()][::-1]
        refused = home.cli("exec", "-b", branch, "--", f"waypoint undo {taking}")
        assert (refused.code, "has this number" in refused.stdout) == (2, True), refused
        assert taking not in [one["number"] for one in json.loads(inside(home, branch, "waypoint op log --json"))]
        assert f"took back {own}" in inside(home, branch, f"waypoint undo {own}")


def test_a_branch_is_not_told_the_names_of_its_forks(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    home.must("fork", f"{branch}-cp", f"{branch}-fork")
    home.must("stop", f"{branch}-fork", "--discard")
    home.must("fork", f"{branch}-cp", f"{branch}-fork")
    for words in ("log", "log --json", f"show {branch}-cp", "__complete restore ''"):
        said = inside(home, branch, f"waypoint {words}")
        assert (f"{branch}-cp" in said, f"{branch}-fork" in said) == (True, False), said
    home.must("stop", f"{branch}-fork", "--discard")
