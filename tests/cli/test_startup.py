"""What a verb of the fast path loads. Counted, not timed: a busy machine must not fail a test."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.homes import Home
from waypoint.cli.commands import setup

pytestmark = pytest.mark.privileged

SLOW = {"click", "re", "json", "socket", "argparse", "typing", "dataclasses", "enum", "functools", "subprocess", "site"}
# What a verb that is not of the fast path, and is one call, has no use for. `ast` is what inspect loads.
HEAVY = {"click", "ast", "copy", "json", "hashlib", "shutil", "subprocess", "threading", "urllib.parse"}
# Of the interpreter's own there are about 25; each further one costs some 0.2 ms.
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
def test_a_verb_of_the_fast_path_loads_little(home: Home, words: list[str]) -> None:
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
    ("words", "code", "records"),
    [
        (["ps"], 0, "limit live stranger"),
        (["stop", "--all", "--json"], 0, "limit live stop"),
        (["stop", "bad name"], 2, ""),
        (["stop", "nosuch"], 2, "stop"),
        (["log", "--all"], 0, "kept limit process"),
        (["show", "nosuch"], 2, "kept limit live process"),
        (["rm", "nosuch"], 2, ""),
        (["branch"], 0, "name"),
        (["branch", "list", "--json"], 0, "name"),
        (["branch", "delete", "nosuch"], 2, "name"),
        (["op", "log", "-n", "3"], 0, "operation"),
        (["undo", "123456"], 2, "operation"),
        (["gc", "--dry-run"], 0, "gc stranger"),
        (["du"], 0, "disk"),
        (["verify"], 0, "store"),
        (["evict", "--all"], 0, "store"),
        (["cat", "nosuch:/x"], 2, ""),
        (["layer", "list", "nosuch"], 2, "layer"),
        (["profile", "list"], 0, "profile"),
        (["events"], 0, ""),
        (["logs", "nosuch"], 2, ""),
        (["daemon", "status"], 0, "status"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_verb_that_is_one_call_loads_what_this_call_needs(
    home: Home, words: list[str], code: int, records: str
) -> None:
    """`records`: by kind, those of the answers that it may load: a large one takes 2 ms, and the first one 15."""
    done, loaded = loaded_by(home, words)
    assert done.returncode == code, done.stderr
    assert HEAVY & loaded == set()
    assert not [name for name in loaded if name.startswith("waypoint.parcel")]
    made = {name.rpartition(".")[2].removesuffix("_facts") for name in loaded if name.endswith("_facts")}
    assert made <= set(records.split())
    assert records or "dataclasses" not in loaded or words[0] == "cat"


def test_setup_loads_what_it_needs(home: Home) -> None:
    done, loaded = loaded_by(home, ["setup", "--check"])
    assert done.returncode == 0, done.stderr
    assert not {"click", "ast", "json", "typing"} & loaded


def loaded_by(home: Home, words: list[str]) -> tuple[subprocess.CompletedProcess[bytes], set[str]]:
    """The command, ended, and the modules that it has loaded."""
    python, *rest = home.argv(*words)
    done = subprocess.run([python, "-X", "importtime", *rest], env=home.env, capture_output=True, check=False)
    return done, set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr.decode(), re.MULTILINE))


@pytest.mark.parametrize(
    ("verb", "loads"), [("install", True), ("check", True), ("add-outside", False), ("remove", False)]
)
def test_a_work_of_setup_that_has_nothing_to_do_with_criu_loads_none_of_that(
    home: Home, tmp_path: Path, verb: str, *, loads: bool
) -> None:
    python, *_ = home.argv()
    place = str(home.path if loads else tmp_path / "nothing")
    argv = [python, "-I", "-S", "-X", "importtime", setup.PROGRAM, verb, place, "--root", str(tmp_path)]
    argv += ["--criu", os.environ["WAYPOINT_CRIU"]] if loads else []  # else it would have to install one
    done = subprocess.run(argv, env=home.env, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    loaded = re.findall(rb"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)
    heavy = {b"msgspec", b"waypoint.processes.criu.rpc"}
    assert heavy & set(loaded) == (heavy if loads else set())
    assert b"ast" not in loaded


@pytest.mark.parametrize("words", [["ps", "--nosuch"], ["op"], ["log", "--help"]], ids=" ".join)
def test_and_then_it_is(home: Home, words: list[str]) -> None:
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
def test_so_does_one_that_fails(home: Home, words: list[str], code: int) -> None:
    python, *rest = home.argv(*words)
    done = subprocess.run([python, "-X", "importtime", *rest], env=home.env, capture_output=True, check=False)
    loaded = re.findall(r"^import time:.*\| +(\S+)$", done.stderr.decode(), re.MULTILINE)
    assert done.returncode == code
    assert SLOW & set(loaded) == set()
