"""With `--json` every error is one JSON value on stdout."""

import json

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged
PARTS = {"code", "exit", "tried", "on", "said", "next"}


NO_NAME, NO_BRANCH = "nothing has this name", "there is no such branch"


@pytest.mark.parametrize(
    ("words", "on", "said"),
    [
        ("show nosuch", "'nosuch'", NO_NAME),
        ("checkpoint x -b nosuch", "branch nosuch", NO_BRANCH),
        ("restore nosuch", "'nosuch'", NO_NAME),
        ("fork nosuch x", "'nosuch'", NO_NAME),
        ("undo 99999", "operation 99999", "no operation has this number"),
        ("log nosuch", "'nosuch'", NO_NAME),
        ("stop nosuch", "branch nosuch", NO_BRANCH),
        ("rm nosuch", "'nosuch'", NO_NAME),
        ("branch delete nosuch", "branch nosuch", NO_BRANCH),
        ("shell -d --cwd /nope nosuch", "/nope", "No such file or directory"),
        ("nosuch", "waypoint nosuch", "there is no such command"),
        ("show", "waypoint show", "NAME is missing"),
        ("log -n nonsense", "waypoint log -n", "is not a whole number"),
        ("fork x -n 0", "waypoint fork -n", "is not a whole number"),
        ("ps --nosuch", "waypoint ps --nosuch", "there is no such option"),
        ("attach nosuch", "waypoint attach --json", "there is no such option"),  # stdout belongs to the session
        ("exec --timeout nonsense", "waypoint exec --timeout", "is not a number of seconds"),
        ("run", "waypoint run --json", "there is no such option"),  # stdout belongs to the process
    ],
)
@pytest.mark.parametrize("first", [False, True], ids=["", "--home first"])
def test_an_error_is_one_json_value_with_its_parts(home: Home, words: str, on: str, said: str, *, first: bool) -> None:
    before = ["--home", str(home.path)] if first else []
    done = home.cli(*before, *words.split(), "--json")
    value = json.loads(done.stdout)
    error = value["error"]
    assert set(error) == PARTS
    assert (done.code, error["exit"]) == (2, 2)
    assert on in error["on"]
    assert said in error["said"]
    assert f"cannot {error['tried']} {error['on']}".rstrip() in done.stderr
    beside = {"stop": {"stopped": []}, "exec": {"exit": 2, "by": "waypoint", "ended": False, "output": ""}}
    assert value == {"error": error, **beside.get(words.split()[0], {})}


@pytest.mark.parametrize("words", ["ps", "op log -n 1", "--home {home} ps", "branch"])
def test_json_may_be_given_before_the_verb(home: Home, words: str) -> None:
    done = home.cli("--json", *words.format(home=home.path).split())
    assert (done.code, type(done.json())) == (0, list), done


@pytest.mark.parametrize("words", ["nosuch", "run -- true", "show nosuch"])
def test_json_before_the_verb_makes_errors_json(home: Home, words: str) -> None:
    done = home.cli("--json", *words.split())
    assert (done.code, set(done.json()["error"])) == (2, PARTS), done


def test_removals_print_the_removed_names_as_json(home: Home) -> None:
    home.must("shell", "doomed", "-d")
    home.must("checkpoint", "doomed-cp", "-b", "doomed")
    assert home.must("rm", "doomed-cp", "--json").json() == {"removed": ["doomed-cp"]}
    assert home.must("branch", "delete", "doomed", "--stop", "--json").json() == {"removed": ["doomed"]}
    assert "doomed" not in home.must("branch", "--json").stdout


def test_without_json_nothing_is_on_stdout(home: Home) -> None:
    for words in ("show nosuch", "show", "nosuch"):
        assert home.cli(*words.split()).stdout == ""


def test_a_stop_that_fails_for_one_session_reports_the_others(home: Home) -> None:
    home.must("shell", "there", "-d")
    done = home.cli("stop", "nosuch", "there", "--discard", "--json")
    assert done.code == 2
    found = done.json()
    assert found["error"]["on"] == "branch nosuch"
    assert [one["branch"] for one in found["stopped"]] == ["there"]


def test_json_after_the_command_belongs_to_the_command(home: Home) -> None:
    done = home.cli("exec", "-b", "nosuch", "ls", "--json")
    assert (done.code, done.stdout) == (125, "")
    done = home.cli("--home", str(home.path), "exec", "--timeout", "nonsense", "ls", "--json")
    assert (done.code, done.stdout) == (2, "")
    done = home.cli("exec", "-b", "nosuch", "--json", "ls")
    assert (done.code, done.json()["by"], set(done.json()["error"])) == (125, "waypoint", PARTS)


@pytest.mark.parametrize("words", ["--timeout nonsense ls", "--nosuch", "--tty ls", "-b '' ls", ""])
@pytest.mark.parametrize("first", [False, True], ids=["", "--home first"])
def test_exec_json_always_says_whose_the_exit_status_is(home: Home, words: str, *, first: bool) -> None:
    before = ["--home", str(home.path)] if first else []
    done = home.cli(*before, "exec", "--json", *(word.strip("'") for word in words.split()))
    found = done.json()
    assert (done.code, found["exit"], found["by"], found["ended"], found["output"]) == (2, 2, "waypoint", False, "")
    assert set(found["error"]) == PARTS


@pytest.mark.parametrize(
    "words", ["attach a -b b", "logs a -b b", "checkpoint x -b ''", "exec -b '' ls", "run -b '' ls"]
)
def test_every_verb_refuses_two_branches_and_an_empty_branch(home: Home, words: str) -> None:
    done = home.cli(*(word.strip("'") for word in words.split()))
    assert done.code == 2, done
    assert "cannot use" in done.stderr
