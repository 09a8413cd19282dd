"""With `--json` every error is one JSON value on stdout."""

import json

import pytest

from tests.homes import Home
from waypoint.cli.fast.exec_json import nothing_of

pytestmark = pytest.mark.privileged
PARTS = {"code", "exit", "tried", "on", "said", "next"}


def test_an_error_is_one_json_value_with_its_parts(home: Home) -> None:
    no_name, no_branch = "nothing has this name", "there is no such branch"
    errors = {
        "show nosuch": ("'nosuch'", no_name),
        "checkpoint x -b nosuch": ("branch nosuch", no_branch),
        "fork nosuch x": ("'nosuch'", no_name),
        "undo 99999": ("operation 99999", "no operation has this number"),
        "stop nosuch": ("branch nosuch", no_branch),
        "branch delete nosuch": ("branch nosuch", no_branch),
        "shell -d --cwd /nope nosuch": ("/nope", "No such file or directory"),
        "nosuch": ("waypoint nosuch", "there is no such command"),
        "show": ("waypoint show", "NAME is missing"),
        "ps --nosuch": ("waypoint ps --nosuch", "there is no such option"),
        "attach nosuch": ("waypoint attach --json", "there is no such option"),  # stdout belongs to the session
        "exec --timeout nonsense": ("waypoint exec --timeout", "is not a number of seconds"),
        "run": ("waypoint run", "ARGV is missing"),
    }
    beside = {"stop": {"stopped": []}} | {verb: nothing_of(verb) | {"exit": 2} for verb in ("exec", "run")}
    for number, (words, (on, said)) in enumerate(errors.items()):
        before = ["--home", str(home.path)] if number % 2 else []
        done = home.cli(*before, *words.split(), "--json")
        value = json.loads(done.stdout)
        error = value["error"]
        assert set(error) == PARTS
        assert (done.code, error["exit"]) == (2, 2)
        assert on in error["on"]
        assert said in error["said"]
        assert f"cannot {error['tried']} {error['on']}".rstrip() in done.stderr
        assert value == {"error": error, **beside.get(words.split()[0], {})}


def test_json_may_be_given_before_the_verb(home: Home) -> None:
    for words in ("ps", "op log -n 1", f"--home {home.path} ps", "branch"):
        done = home.cli("--json", *words.split())
        assert (done.code, type(done.json())) == (0, list), done
    for words in ("nosuch", "attach nosuch", "show nosuch"):
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
    home.must("shell", "ended", "-d")
    home.must("stop", "--files", "ended")
    done = home.cli("stop", "ended", "there", "--discard", "--json")
    assert done.code == 4
    found = done.json()
    assert found["error"]["on"] == "branch ended"
    assert [one["branch"] for one in found["stopped"]] == ["there"]


def test_json_after_the_command_belongs_to_the_command(home: Home) -> None:
    done = home.cli("exec", "-b", "nosuch", "ls", "--json")
    assert (done.code, done.stdout) == (125, "")
    done = home.cli("--home", str(home.path), "exec", "--timeout", "nonsense", "ls", "--json")
    assert (done.code, done.stdout) == (2, "")
    done = home.cli("exec", "-b", "nosuch", "--json", "ls")
    assert (done.code, done.json()["by"], set(done.json()["error"])) == (125, "waypoint", PARTS)


def test_exec_json_names_the_exit_status_of_the_process(home: Home) -> None:
    done = home.cli("exec", "-b", "nosuch", "--json", "true")
    found = done.json()
    assert (done.code, found["exit"], found["error"]["exit"], found["error"]["code"]) == (125, 125, 125, "unknown-name")


def test_exec_json_reports_wrong_usage_as_a_failure_of_waypoint(home: Home) -> None:
    for words in ("--timeout nonsense ls", "--nosuch", "--tty ls", "-b '' ls", ""):
        for before in ([], ["--home", str(home.path)]):
            done = home.cli(*before, "exec", "--json", *(word.strip("'") for word in words.split()))
            found = done.json()
            outcome = (found["exit"], found["by"], found["ended"], found["output"])
            assert (done.code, outcome) == (2, (2, "waypoint", False, "")), words
            assert set(found["error"]) == PARTS


def test_two_branches_or_an_empty_branch_are_wrong_usage(home: Home) -> None:
    for words in ("attach a -b b", "logs a -b b", "checkpoint x -b ''", "exec -b '' ls", "run -b '' ls"):
        done = home.cli(*(word.strip("'") for word in words.split()))
        assert done.code == 2, done
        assert "cannot use" in done.stderr
