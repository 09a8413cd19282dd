"""Points, and `waypoint rewind` back to them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pexpect
import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

LOOK = "cat /tmp/kept; echo $X; jobs -r | wc -l"


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


def titles(home: Home, branch: str) -> list[str]:
    listed = home.must("rewind", branch, "--list", "--json").json()
    assert [one["number"] for one in listed] == list(range(1, len(listed) + 1))
    return [one["name"] or one["label"] for one in listed]


def test_a_rewind_brings_back_files_and_processes_and_is_undone(home: Home, branch: str) -> None:
    home.must("point", "-b", branch, "--label", "first")
    inside(home, branch, "echo one >/tmp/kept; X=1; sleep 100000 & true")
    home.must("point", "-b", branch, "--label", "second")
    inside(home, branch, "rm /tmp/kept; X=2; kill %1; wait")
    home.must("checkpoint", f"{branch}-named", "-b", branch)
    assert titles(home, branch) == [f"{branch}-named", "second", "first"]
    second = home.must("rewind", branch, "--json").json()[1]
    assert second["commands"] == []
    assert second["processes"] == 3
    done = home.must("rewind", branch, "-n", "2")
    assert done.stdout == "second\n"
    assert inside(home, branch, LOOK).split() == ["one", "1", "1"]
    assert titles(home, branch) == ["second", "first"]
    home.must("point", "-b", branch, "--label", "third")
    home.must("undo", "-b", branch)
    assert inside(home, branch, f"{{ {LOOK}; }} 2>/dev/null").split() == ["2", "0"]
    assert titles(home, branch) == [f"{branch}-named", "second", "first"]


def test_a_point_of_an_unchanged_session_shares_its_capture(home: Home, branch: str) -> None:
    client = Client(home.path).session(branch)
    made = client.point("one")
    while not made.reused:  # a busy machine may let a program run twice at the thaw
        made = client.point("one")
    again = client.point("two")
    assert (again.reused, again.capture) == (True, made.capture)
    newest, before = client.points()[:2]
    assert (newest.label, before.label, before.capture) == ("two", "one", newest.capture)
    assert before.changes == {"files": 0, "insertions": 0, "deletions": 0}


def test_files_alone_go_back_while_the_programs_continue(home: Home, branch: str) -> None:
    inside(home, branch, "echo one >/tmp/kept; X=1")
    home.must("point", "-b", branch)
    inside(home, branch, "echo two >/tmp/kept; X=2; sleep 100000 & true")
    home.must("rewind", branch, "-n", "1", "--only", "files")
    assert inside(home, branch, LOOK).split() == ["one", "2", "1"]


def test_the_conversation_goes_back_with_the_session_or_alone(home: Home, branch: str, tmp_path: Path) -> None:
    log = tmp_path / "conversation.jsonl"
    log.write_text("prompt 1\n")
    home.must("point", "-b", branch, "--label", "prompt 1", "--conversation", str(log))
    inside(home, branch, "echo one >/tmp/kept")
    log.write_text("prompt 1\nanswer 1\nprompt 2\n")
    home.must("point", "-b", branch, "--label", "prompt 2", "--conversation", str(log))
    log.write_text("prompt 1\nanswer 1\nprompt 2\nanswer 2\n")
    home.must("rewind", branch, "-n", "1", "--only", "conversation")
    assert log.read_text() == "prompt 1\nanswer 1\nprompt 2\n"
    assert (tmp_path / "conversation.jsonl.before-rewind").read_text().endswith("answer 2\n")
    assert inside(home, branch, "cat /tmp/kept") == "one\n"
    log.write_text("a compacted conversation\n")  # so only the copy in the capture has it
    done = home.must("rewind", branch, "-n", "2", "--json").json()
    assert done["point"]["label"] == "prompt 1"
    assert log.read_text() == "prompt 1\n"
    assert inside(home, branch, "cat /tmp/kept 2>/dev/null || echo gone") == "gone\n"


def test_the_conversation_of_an_agent_in_the_session_goes_back_alone(home: Home, branch: str) -> None:
    inside(home, branch, "echo 1 >/root/talk; waypoint point --label one --conversation /root/talk >/dev/null; X=2")
    inside(home, branch, "echo 2 >>/root/talk; echo two >/tmp/kept")
    home.must("rewind", branch, "-n", "1", "--only", "conversation")
    assert inside(home, branch, "cat /root/talk /tmp/kept; echo $X").split() == ["1", "two", "2"]


def test_a_point_is_chosen_by_the_arrow_keys(home: Home, branch: str) -> None:
    for word in ("one", "two"):
        home.must("point", "-b", branch, "--label", f"prompt {word}")
        inside(home, branch, f"echo {word} >/tmp/kept")
    child = pexpect.spawn(
        home.argv("rewind", branch)[0], home.argv("rewind", branch)[1:], env=home.env, timeout=PATIENCE_S
    )
    child.expect("This takes back one step")
    child.send("\x1b[B")
    child.expect("This takes back 2 steps")
    child.send("\r")
    child.expect(pexpect.EOF)
    assert b"prompt one" in child.before
    assert inside(home, branch, "cat /tmp/kept 2>/dev/null || echo gone") == "gone\n"
    child.close()


def test_a_process_in_the_session_lists_the_points_and_goes_back(home: Home, branch: str) -> None:
    inside(
        home, branch, "waypoint point --label 'inside one'; echo one >/tmp/kept; waypoint point --label 'inside two'"
    )
    listed = json.loads(inside(home, branch, "waypoint rewind --list --json"))
    assert [one["label"] for one in listed[:2]] == ["inside two", "inside one"]
    assert inside(home, branch, "waypoint rewind -n 2 --only files").splitlines()[0] == "inside one"
    assert (
        inside(home, branch, "cat /tmp/kept 2>/dev/null || echo gone; waypoint rewind -n 200 2>/dev/null; echo $?")
        == "gone\n2\n"
    )


def test_points_at_once_are_all_made(home: Home, branch: str) -> None:
    inside(home, branch, "echo one >/tmp/kept")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda label: Client(home.path).session(branch).point(label), ("a", "b", "c")))
    assert sorted(titles(home, branch)) == ["a", "b", "c"]


def test_a_session_with_auto_makes_points_after_commands(home: Home) -> None:
    with session(home, "root", "--auto") as name:
        wait_until(lambda: titles(home, name) == ["the session begins"], "the first prompt has a point")
        inside(home, name, "echo one >/tmp/kept")
        wait_until(lambda: titles(home, name)[:1] == ["after: echo one >/tmp/kept"], "the command has a point")
        home.must("rewind", name, "-n", "2")
        assert inside(home, name, "cat /tmp/kept 2>/dev/null || echo gone") == "gone\n"


def test_what_cannot_be_rewound_is_refused_and_changes_nothing(home: Home, branch: str) -> None:
    home.must("point", "-b", branch)
    assert home.cli("rewind", branch).code == 2  # no terminal to choose on
    assert home.cli("rewind", branch, "-n", "9").code == 2
    refused = home.cli("rewind", branch, "-n", "1", "--only", "conversation", "--json")
    assert refused.code == 2
    assert "no conversation was noted" in refused.json()["error"]["said"]
