"""Commands that a message advises contain `--home` if they would otherwise act on another home."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.advice import next_of
from tests.homes import Completed, Home, open_home
from tests.repo import tree
from tests.waiting import PATIENCE_S
from waypoint.model.paths import SYSTEM_HOME
from waypoint.model.verbs.advice import on_home
from waypoint.model.verbs.table import WAYPOINT

HOME = "/a home"
HELP = (Path("waypoint/model/verbs/table.py"), Path("waypoint/model/verbs/fast.py"))
SHOWN = re.compile(rf"(?<![/\w-])waypoint (?:(?:{'|'.join(member.name for member in WAYPOINT.members)})\b|--)")
UNNAMED = re.compile(r"(?<![/\w-])waypoint (?!--home )[a-z]+[^:]")


def texts_with_commands() -> set[str]:
    """Return all texts of the program that contain a command of Waypoint, with `{}` for inserted values.

    Docstrings and the help of commands are left out.
    """
    found = set()
    for path in tree.python_files("waypoint"):
        if path not in HELP and "waypoint " in tree.text(path):
            module = tree.parsed(path)
            left_out = tree.docstrings(module)
            for node in ast.walk(module):  # an f-string comes before its parts
                match node:
                    case ast.JoinedStr(values=parts):
                        left_out |= {part for part in parts if isinstance(part, ast.Constant)}
                        found.add("".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in parts))
                    case ast.Constant(value=str(text)) if node not in left_out:
                        found.add(text)
    return {text for text in found if SHOWN.search(text)}


def test_commands_in_messages_get_the_home_if_it_is_not_the_default() -> None:
    texts = texts_with_commands()
    assert len(texts) > 50
    wrong = []
    for text in texts:
        said = on_home(text, HOME, SYSTEM_HOME)
        is_named = not UNNAMED.search(said) and said.replace(f" --home '{HOME}'", "") == text
        is_stable = on_home(said, HOME, SYSTEM_HOME) == said and ("sudo " in text or on_home(text, HOME, HOME) == text)
        if not is_named or not is_stable:
            wrong.append(said)
    assert not wrong, "\n".join(wrong)


def test_commands_with_sudo_get_the_home_of_the_variable() -> None:
    assert on_home("be root: sudo waypoint ps", HOME, HOME) == f"be root: sudo waypoint --home '{HOME}' ps"
    assert on_home("be root: sudo waypoint ps", SYSTEM_HOME, HOME) == "be root: sudo waypoint ps"
    assert on_home("waypoint ps", SYSTEM_HOME, HOME) == f"waypoint --home {SYSTEM_HOME} ps"


def test_text_that_is_not_a_command_is_unchanged() -> None:
    for text in ("waypoint: the home has 2 captures", "cannot open /usr/bin/waypoint shell", "waypoint runs"):
        assert on_home(text, HOME, SYSTEM_HOME) == text


# --- printed messages


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
        (("undo", "-b", "brief"), "to reverse this undo: waypoint --home {} undo "),
        (("exec", "-b", "gone", "--", "true"), "to start this one: waypoint --home {} shell gone -d"),
        (("checkpoint", "noted"), "or replace that checkpoint: waypoint --home {} checkpoint --force noted -b main"),
        (("run", "-b", "gone", "--", "true"), "'waypoint --home {} ps --all' lists"),
        (("stop", "gone"), "'waypoint --home {} ps --all' lists"),
        (("undo", "9999"), "see 'waypoint --home {} op log'"),
        (("shell", "main"), "'waypoint --home {} exec -b main -- CMD'"),
        (("checkpoint", "noted", "--json"), "waypoint --home {} checkpoint --force noted -b main"),
        (("exec", "-b", "gone", "--json", "--", "true"), "to start this one: waypoint --home {} shell gone -d"),
    ],
)
def test_printed_commands_name_the_given_home(named: Home, words: tuple[str, ...], step: str) -> None:
    done = asked(named, *words)
    said = done.stderr + (next_of(done.stdout) if "--json" in words else "")
    assert step.format(named.path) in said, said
    assert not UNNAMED.search(said), said


@pytest.mark.privileged
def test_the_last_line_of_shell_names_the_home(named: Home) -> None:
    argv = named.argv("--home", str(named.path), "shell", "left")
    for leave, said in (
        ("\x1dd", "to return: waypoint --home {} attach left]"),
        ("exit\r", "waypoint --home {} shell left]"),
    ):
        terminal = pexpect.spawn(argv[0], argv[1:], env=plain_env(named), timeout=PATIENCE_S, dimensions=(24, 200))
        terminal.expect(rb"left.*[#$] ")
        terminal.send(leave.encode())
        terminal.expect_exact(said.format(named.path).encode())
        terminal.wait()


@pytest.mark.privileged
def test_a_home_from_the_variable_is_not_added(named: Home) -> None:
    refused = named.cli("exec", "-b", "gone", "--", "true")
    assert "to start this one: waypoint shell gone -d" in refused.stderr


@pytest.mark.privileged
def test_inside_a_session_no_home_is_added(named: Home) -> None:
    done = asked(named, "run", "-b", "main", "--", "waypoint", "undo", "9999")
    assert "see 'waypoint op log'" in done.stdout + done.stderr
