"""The modules that verbs import. They are counted, not timed, because a busy machine must not fail a test."""

import re
import subprocess

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged

SLOW = {"click", "re", "json", "socket", "argparse", "typing", "dataclasses", "enum", "functools", "subprocess", "site"}
# About 25 belong to the interpreter; each further one costs some 0.2 ms.
MOST_MODULES = 60


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "--", "true"],
        ["run", "true"],
        ["exec", "-i", "--", "cat"],
        ["shell", "-d"],
        ["checkpoint", "c", "--force", "-m", "a message", "--tier", "auto"],
        ["checkpoint", "c", "--force", "--json"],
        ["restore", "c"],
        ["restore", "c", "--json"],
        ["fork", "c", "-n", "2", "--prefix", "loads-little"],
        ["fork", "c", "loads-little", "--json"],
    ],
)
def test_a_verb_of_the_fast_path_imports_few_modules(home: Home, words: list[str]) -> None:
    home.must("shell", "-d")
    if words[0] in ("restore", "fork"):
        home.must("checkpoint", "c", "--force")
    python, *rest = home.argv(*words)
    done = subprocess.run(
        [python, "-X", "importtime", *rest], env=home.env, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    loaded = re.findall(r"^import time:.*\| +(\S+)$", done.stderr.decode(), re.MULTILINE)
    assert "waypoint.client.wire" in loaded
    assert SLOW & set(loaded) == set()
    assert len(loaded) < MOST_MODULES


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ps"], 0),
        (["stop", "--all", "--json"], 0),
        (["stop", "bad name"], 2),
        (["ps", "--nosuch"], 2),
        (["log", "--all"], 0),
        (["show", "nosuch"], 2),
        (["rm", "nosuch"], 2),
        (["branch"], 0),
        (["branch", "list", "--json"], 0),
        (["branch", "delete", "nosuch"], 2),
        (["op", "log", "-n", "3"], 0),
        (["undo", "123456"], 2),
        (["gc", "--dry-run"], 0),
        (["du"], 0),
        (["events"], 0),
        (["daemon", "status"], 0),
        (["setup", "--check"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_click_is_not_loaded_otherwise(home: Home, words: list[str], code: int) -> None:
    python, *rest = home.argv(*words)
    done = subprocess.run([python, "-X", "importtime", *rest], env=home.env, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert not re.search(rb"^import time:.*\| +click$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("words", [["op"], ["log", "--help"]], ids=" ".join)
def test_click_is_loaded_for_help(home: Home, words: list[str]) -> None:
    python, *rest = home.argv(*words)
    done = subprocess.run([python, "-X", "importtime", *rest], env=home.env, capture_output=True, check=False)
    assert re.search(rb"^import time:.*\| +click$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["exec", "-b", "bad name", "--", "true"], 2),
        (["run", "-b", "nosuch", "true"], 125),
        (["checkpoint", "bad name"], 2),
        (["fork", "nosuch", "x"], 2),
        (["restore", "nosuch"], 2),
    ],
)
def test_a_failing_verb_of_the_fast_path_imports_few_modules(home: Home, words: list[str], code: int) -> None:
    python, *rest = home.argv(*words)
    done = subprocess.run([python, "-X", "importtime", *rest], env=home.env, capture_output=True, check=False)
    loaded = re.findall(r"^import time:.*\| +(\S+)$", done.stderr.decode(), re.MULTILINE)
    assert done.returncode == code
    assert SLOW & set(loaded) == set()
