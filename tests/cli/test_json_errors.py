"""With `--json` every error is one JSON value on stdout, as much as a result is."""

import json

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged
PARTS = {"code", "exit", "tried", "on", "said", "next"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("show nosuch", 2),
        ("checkpoint x -b nosuch", 2),
        ("restore nosuch", 2),
        ("fork nosuch x", 2),
        ("undo 99999", 2),
        ("log nosuch", 2),
        ("stop nosuch", 2),
        ("rm nosuch", 2),
        ("branch delete nosuch", 2),
        ("shell -d --cwd /nope nosuch", 2),
        ("attach nosuch", 2),
        ("nosuch", 2),
        ("show", 2),
        ("log -n nonsense", 2),
        ("fork x -n 0", 2),
        ("ps --nosuch", 2),
        ("exec --timeout nonsense", 2),
        ("run", 2),
    ],
)
def test_an_error_is_one_json_value_with_its_parts(home: Home, words: str, code: int) -> None:
    done = home.cli(*words.split(), "--json")
    error = json.loads(done.stdout)["error"]
    assert set(error) == PARTS
    assert (done.code, error["exit"]) == (code, code)
    assert f"cannot {error['tried']} {error['on']}".rstrip() in done.stderr


def test_without_json_nothing_is_on_stdout(home: Home) -> None:
    for words in ("show nosuch", "show", "nosuch"):
        assert home.cli(*words.split()).stdout == ""


def test_a_stop_that_fails_for_one_tells_of_the_others(home: Home) -> None:
    home.must("shell", "there", "-d")
    done = home.cli("stop", "nosuch", "there", "--discard", "--json")
    assert done.code == 2
    found = done.json()
    assert found["error"]["on"] == "branch nosuch"
    assert [one["branch"] for one in found["stopped"]] == ["there"]


def test_a_command_of_its_own_has_its_own_json(home: Home) -> None:
    done = home.cli("exec", "-b", "nosuch", "ls", "--json")
    assert (done.code, done.stdout) == (125, "")
    done = home.cli("exec", "-b", "nosuch", "--json", "ls")
    assert (done.code, done.json()["by"], set(done.json()["error"])) == (125, "waypoint", PARTS)


@pytest.mark.parametrize("words", ["--timeout nonsense ls", "--nosuch", "--tty ls", "-b '' ls", ""])
def test_the_value_of_an_exec_always_says_whose_its_status_is(home: Home, words: str) -> None:
    done = home.cli("exec", "--json", *(word.strip("'") for word in words.split()))
    found = done.json()
    assert (done.code, found["exit"], found["by"], found["ended"], found["output"]) == (2, 2, "waypoint", False, "")
    assert set(found["error"]) == PARTS


@pytest.mark.parametrize(
    "words", ["attach a -b b", "logs a -b b", "checkpoint x -b ''", "exec -b '' ls", "run -b '' ls"]
)
def test_every_verb_finds_its_branch_in_one_way(home: Home, words: str) -> None:
    done = home.cli(*(word.strip("'") for word in words.split()))
    assert done.code == 2, done
    assert "cannot use" in done.stderr
