"""What is advised acts on the home that it is about, typed where it is read: a command that would act on another one
names it.
"""

import re
from collections.abc import Iterator

import pexpect
import pytest

from tests.cli.test_next_steps import next_of
from tests.homes import Completed, Home, open_home
from tests.repo import next_steps
from tests.waiting import PATIENCE_S
from waypoint.model.paths import SYSTEM_HOME
from waypoint.model.verbs.advice import on_home

HOME = "/a home"
UNNAMED = re.compile(r"(?<![/\w-])waypoint (?!--home )[a-z]+[^:]")


def test_every_command_in_a_next_step_names_another_home() -> None:
    texts = [text for text in next_steps.advised() if "waypoint " in text]
    assert len(texts) > 50
    for text in texts:  # not one test each: every worker would look for them, at the begin of each run
        said = on_home(text, HOME, SYSTEM_HOME)
        assert not UNNAMED.search(said), said
        assert said.replace(f" --home '{HOME}'", "") == text
        assert on_home(said, HOME, SYSTEM_HOME) == said
        if "sudo " not in text:
            assert on_home(text, HOME, HOME) == text


def test_behind_sudo_a_home_that_a_variable_named_is_named() -> None:
    assert on_home("be root: sudo waypoint ps", HOME, HOME) == f"be root: sudo waypoint --home '{HOME}' ps"
    assert on_home("be root: sudo waypoint ps", SYSTEM_HOME, HOME) == "be root: sudo waypoint ps"
    assert on_home("waypoint ps", SYSTEM_HOME, HOME) == f"waypoint --home {SYSTEM_HOME} ps"


def test_what_is_no_command_stays() -> None:
    for text in ("waypoint: the home has 2 captures", "cannot open /usr/bin/waypoint shell", "waypoint runs"):
        assert on_home(text, HOME, SYSTEM_HOME) == text


# --- as it is printed


@pytest.fixture(scope="module")
def named() -> Iterator[Home]:
    with open_home("named") as home:
        home.must("shell", "main", "-d")
        home.must("checkpoint", "noted")
        home.must("shell", "brief", "-d")
        yield home


def plain_env(home: Home) -> dict[str, str]:
    return {name: value for name, value in home.env.items() if name != "WAYPOINT_HOME"}


def asked(home: Home, *words: str) -> Completed:
    return home.cli("--home", str(home.path), *words, env={"WAYPOINT_HOME": ""})


@pytest.mark.privileged
@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("restore", "noted"), "to get it back: waypoint --home {} undo -b main"),
        (("undo", "-b", "brief"), "the way back: waypoint --home {} undo "),
        (("exec", "-b", "gone", "--", "true"), "to start it: waypoint --home {} shell gone -d"),
        (("checkpoint", "noted"), "or move that one: waypoint --home {} checkpoint --force noted -b main"),
        (("run", "-b", "gone", "--", "true"), "'waypoint --home {} ps --all' lists"),
        (("stop", "gone"), "'waypoint --home {} ps --all' lists"),
        (("undo", "9999"), "see 'waypoint --home {} op log'"),
        (("shell", "main"), "'waypoint --home {} exec -b main -- CMD'"),
        (("checkpoint", "noted", "--json"), "waypoint --home {} checkpoint --force noted -b main"),
        (("exec", "-b", "gone", "--json", "--", "true"), "to start it: waypoint --home {} shell gone -d"),
    ],
)
def test_what_a_command_prints_names_the_home_that_it_was_given(named: Home, words: tuple[str, ...], step: str) -> None:
    done = asked(named, *words)
    said = done.stderr + (next_of(done.stdout) if "--json" in words else "")
    assert step.format(named.path) in said, said
    assert not UNNAMED.search(said), said


@pytest.mark.privileged
def test_a_terminal_is_left_with_advice_that_names_the_home(named: Home) -> None:
    argv = named.argv("--home", str(named.path), "shell", "left")
    for leave, said in (
        ("\x1dd", "to come back: waypoint --home {} attach left]"),
        ("exit\r", "waypoint --home {} shell left]"),
    ):
        terminal = pexpect.spawn(argv[0], argv[1:], env=plain_env(named), timeout=PATIENCE_S, dimensions=(24, 200))
        terminal.expect(rb"left.*[#$] ")
        terminal.send(leave.encode())
        terminal.expect_exact(said.format(named.path).encode())
        terminal.wait()


@pytest.mark.privileged
def test_a_home_that_a_variable_names_is_not_named_again(named: Home) -> None:
    refused = named.cli("exec", "-b", "gone", "--", "true")
    assert "to start it: waypoint shell gone -d" in refused.stderr


@pytest.mark.privileged
def test_inside_a_session_no_home_is_named(named: Home) -> None:
    done = asked(named, "run", "-b", "main", "--", "waypoint", "undo", "9999")
    assert "see 'waypoint op log'" in done.stdout + done.stderr
