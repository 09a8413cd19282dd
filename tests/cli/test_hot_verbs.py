"""The small parser of the hot verbs and click read the same command lines in the same way: one table makes both."""

from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waypoint.cli import hot, hot_commands, hot_verbs

WORDS = [
    "--",
    "-",
    "",
    "ls",
    "none",
    "-la",
    "5",
    "0",
    "0.5",
    "1e3",
    "-1",
    "inf",
    "x=y",
    "--timeout=3",
    "--branch=b",
    "-bname",
]
FLAGS = sorted(
    {flag for verb in hot_verbs.VERBS.values() for flag in verb.by_flag} | {"-it", "-ti", "-ib", "--nosuch", "-h"}
)
ARGV = st.lists(st.sampled_from(WORDS + FLAGS), max_size=6)


def by_click(verb: hot_verbs.Verb, argv: list[str]) -> dict[str, Any] | None:
    """What click makes of it; None where it would complain or print help."""
    command = hot_commands.make(verb)
    try:
        with command.make_context(verb.name, list(argv), resilient_parsing=False) as context:
            return {name: list(v) if isinstance(v, tuple) else v for name, v in context.params.items()}
    except (click.ClickException, click.exceptions.Exit):
        return None


@pytest.fixture(autouse=True)
def _no_help_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "echo", lambda *_, **__: None)


@pytest.mark.parametrize("name", hot_verbs.VERBS)
@settings(max_examples=400, deadline=None)
@given(ARGV)
@example(["--tty", "-i", "--", "cat"])
@example(["ls", "--json"])
@example(["-b", "x", "--timeout", "5", "echo", "-b", "y"])
def test_what_the_small_parser_accepts_click_reads_the_same(name: str, argv: list[str]) -> None:
    verb = hot_verbs.VERBS[name]
    found = hot_verbs.parse(verb, argv)
    if found is not None:
        assert found == by_click(verb, argv)


@pytest.mark.parametrize("name", hot_verbs.VERBS)
@settings(max_examples=400, deadline=None)
@given(ARGV)
def test_what_click_refuses_the_small_parser_does_not_accept(name: str, argv: list[str]) -> None:
    verb = hot_verbs.VERBS[name]
    if by_click(verb, argv) is None:
        assert hot_verbs.parse(verb, argv) is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["true"], {"words": ["true"]}),
        (["--", "--json"], {"words": ["--json"]}),
        (["ls", "--json"], {"words": ["ls", "--json"]}),
        (
            ["-bx", "--timeout=1.5", "-it", "cat"],
            {"branch": "x", "timeout": 1.5, "interactive": True, "tty": True, "words": ["cat"]},
        ),
        (
            ["--branch", "a/b", "--wait-prompt", "0", "--json", "--", "a", "--", "b"],
            {"branch": "a/b", "wait_prompt": 0.0, "json": True, "words": ["a", "--", "b"]},
        ),
    ],
)
def test_the_small_parser_needs_no_click_for_ordinary_command_lines(argv: list[str], expected: dict[str, Any]) -> None:
    found = hot_verbs.parse(hot_verbs.VERBS["exec"], argv)
    assert found is not None
    assert {name: value for name, value in found.items() if value is not None and value is not False} == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["checkpoint", "c"], {"name": "c"}),
        (["checkpoint", "--force", "c", "-m", "a b", "--tier=live"], {"name": "c", "message": "a b", "tier": "live"}),
        (["restore", "c", "-bx"], {"name": "c", "b": "x"}),
        (["restore", "-b", "x", "c", "--branch", "y"], {"name": "c", "b": "x", "branch": "y"}),
        (["fork", "c", "x", "y"], {"name": "c", "branches": ["x", "y"]}),
        (["fork", "c", "-n3", "--prefix", "p"], {"name": "c", "count": 3, "prefix": "p"}),
        (["fork", "c", "x", "--json", "--", "ls", "-n"], {"name": "c", "branches": ["x"], "words": ["ls", "-n"]}),
        (["shell", "x", "-d", "--", "ls", "--"], {"argument": "x", "words": ["ls", "--"]}),
    ],
)
def test_nor_for_verbs_with_arguments(argv: list[str], expected: dict[str, Any]) -> None:
    found = hot_verbs.parse(hot_verbs.VERBS[argv[0]], argv[1:])
    assert found is not None
    assert {name: value for name, value in found.items() if value not in (None, False, True, [])} == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["checkpoint"],
        ["checkpoint", "a", "b"],
        ["checkpoint", "--", "a"],
        ["checkpoint", "a", "--tier", "nosuch"],
        ["restore", "a", "-b"],
        ["fork"],
        ["fork", "a", "-n", "0"],
        ["fork", "a", "-n", "x"],
        ["fork", "a", "-n", "-1"],
        ["shell", "a", "b"],
    ],
)
def test_what_arguments_are_not_plainly_right_is_left_to_click(argv: list[str]) -> None:
    assert hot_verbs.parse(hot_verbs.VERBS[argv[0]], argv[1:]) is None


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--"],
        ["--nosuch", "x"],
        ["--help"],
        ["-h"],
        ["--timeout", "x", "y"],
        ["--timeout", "0", "y"],
        ["--timeout", "-1", "y"],
        ["--json=1", "x"],
        ["-b"],
    ],
)
def test_everything_else_is_left_to_click(argv: list[str]) -> None:
    assert hot_verbs.parse(hot_verbs.VERBS["exec"], argv) is None


def test_every_hot_verb_has_its_action() -> None:
    assert set(hot.ACTIONS) == set(hot_verbs.VERBS)


@pytest.mark.parametrize("name", hot_verbs.VERBS)
def test_help_shows_every_option_and_an_example(name: str) -> None:
    verb = hot_verbs.VERBS[name]
    command = hot_commands.make(verb)
    text = command.get_help(click.Context(command, info_name=name))
    assert all(flag in text for flag in verb.by_flag)
    assert f"Example: waypoint {name}" in text
