"""One table of verbs makes the small parser, click's commands and the requests from inside: they read words alike."""

import re
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing import COUNT
from waypoint.cli import actions, front
from waypoint.model import requests, verbs
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import (
    Group,
    Option,
    Verb,
    asks_for_json,
    fast,
    inside,
    parse,
    parse_number,
    parse_seconds,
    parse_size,
)
from waypoint.model.verbs.table import INSIDE, every_verb, first_sentence
from waypoint.service.inside import serving

VERBS = {verb.name: verb for verb in every_verb() if not isinstance(verb, Group)}
VALUES = {
    "flag": None,
    "text": "a b",
    "texts": "/x:/y",
    "number": "3",
    "seconds": "0.5",
    "positive seconds": "1.5",
    "size": "1.5G",
    "amount": "0.5",
}
WORDS = [
    *("--", "-", "", "ls", "none", "-la", "5", "0", "0.5", "1e3", "-1", "inf", "x=y"),
    *("--timeout=3", "--branch=b", "-bname", "-it", "-ti", "-ib", "--nosuch", "-h"),
]
FLAGS = sorted({flag for verb in VERBS.values() for flag in verb.by_flag})


def words_for(verb: Verb) -> st.SearchStrategy[list[str]]:
    """Command lines in which the verb's own options are likelier than those of others."""
    return st.lists(st.sampled_from(list(verb.by_flag)) | st.sampled_from(WORDS) | st.sampled_from(FLAGS), max_size=6)


def by_click(verb: Verb, argv: list[str]) -> dict[str, Any] | None:
    """What click makes of it; None where it would complain or print help."""
    command = front.make(verb)
    try:
        with command.make_context(verb.name, list(argv), resilient_parsing=False) as context:
            return {name: list(v) if isinstance(v, tuple) else v for name, v in context.params.items()}
    except (click.ClickException, click.exceptions.Exit):
        return None


def by_inside(argv: list[str]) -> tuple[Verb, dict[str, Any]] | None:
    """What the parser for requests from inside makes of it; None where it complains."""
    try:
        return inside.parse(argv)
    except (UsageProblem, inside.HelpWanted):
        return None


def needed(verb: Verb) -> list[str]:
    """As few words as the verb needs, besides options."""
    words = [argument.metavar.lower() for argument in verb.arguments if argument.required]
    return words if verb.arguments or not verb.words else ["--", "true"]


def written(flag: str, option: Option) -> list[str]:
    value = option.choices[0] if option.choices else VALUES[option.kind]
    return [flag] if value is None else [flag, value]


@pytest.fixture(autouse=True)
def _no_help_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "echo", lambda *_, **__: None)


@pytest.mark.parametrize("name", VERBS)
def test_every_way_to_write_every_option_is_read_alike(name: str) -> None:
    verb = VERBS[name]
    for flag, option in verb.by_flag.items():
        argv = [*written(flag, option), *needed(verb)]
        found = parse(verb, argv)
        assert found is not None, argv
        assert found == by_click(verb, argv), argv
        assert found[option.name] not in (None, False, []), argv


@pytest.mark.parametrize("name", VERBS)
def test_a_choice_is_not_made_twice(name: str) -> None:
    """The same one may be given twice, as a script may add it."""
    verb = VERBS[name]
    for option in (option for option in verb.options if len(option.choices) > 1):
        one, other = [f"{option.flags[-1]}={value}" for value in option.choices[:2]]
        argv, same = [one, other, *needed(verb)], [one, one, *needed(verb)]
        assert (parse(verb, argv), by_click(verb, argv)) == (None, None)
        assert dict(parse(verb, same) or {}) == by_click(verb, same)


def check_alike(verb: Verb, argv: list[str]) -> None:
    """What the small parser accepts click reads the same; what click refuses the small parser does not accept."""
    found = parse(verb, argv)
    if found is not None:
        assert found == by_click(verb, argv)


@pytest.mark.parametrize("name", fast.VERBS)
@settings(max_examples=COUNT or 80, deadline=None)
@given(st.data())
def test_what_the_small_parser_accepts_click_reads_the_same(name: str, data: st.DataObject) -> None:
    check_alike(VERBS[name], data.draw(words_for(VERBS[name])))


@settings(max_examples=COUNT or 250, deadline=None)
@given(st.data())
def test_so_it_is_with_the_other_verbs(data: st.DataObject) -> None:
    verb = data.draw(st.sampled_from([verb for name, verb in VERBS.items() if name not in fast.VERBS]))
    check_alike(verb, data.draw(words_for(verb)))


@pytest.mark.parametrize("name", fast.VERBS)
@pytest.mark.parametrize(
    "argv",
    [["--tty", "-i", "--", "cat"], ["ls", "--json"], ["-b", "x", "--timeout", "5", "echo", "-b", "y"]],
    ids=" ".join,
)
def test_and_so_it_does_for_command_lines_that_were_wrong_once(name: str, argv: list[str]) -> None:
    check_alike(fast.VERBS[name], argv)


@pytest.mark.parametrize("verb", INSIDE, ids=lambda verb: verb.name)
@settings(max_examples=COUNT or 80, deadline=None)
@given(st.data())
def test_what_is_accepted_inside_click_reads_the_same(verb: Verb, data: st.DataObject) -> None:
    words = (WORDS, INSIDE[verb] or WORDS, list(verb.by_flag) or WORDS)
    argv = data.draw(st.lists(st.one_of(*map(st.sampled_from, words)), max_size=6))
    found = by_inside([*verb.name.split(), *argv])
    if found is not None:
        assert found == (verb, by_click(verb, argv))


@pytest.mark.parametrize("verb", INSIDE, ids=lambda verb: verb.name)
def test_inside_the_options_of_the_table_are_accepted_and_no_others(verb: Verb) -> None:
    for flag, option in verb.by_flag.items():
        argv = [*written(flag, option), *needed(verb)]
        found = by_inside([*verb.name.split(), *argv])
        assert (found is not None) == (flag in INSIDE[verb]), argv
        assert found is None or found[1] == by_click(verb, argv)


@pytest.mark.parametrize("verb", INSIDE, ids=lambda verb: verb.name)
def test_help_inside_tells_the_options_that_work_there_and_no_others(verb: Verb) -> None:
    with pytest.raises(inside.HelpWanted) as wanted:
        inside.parse([*verb.name.split(), "--help"])
    assert wanted.value.exit_code == 0
    spelled = {word.strip(",") for word in re.findall(r"^ +(-.+?)(?:  |$)", wanted.value.text, re.MULTILINE)}
    flags = {flag for line in spelled for flag in re.findall(r"(?<!\S)--?[a-z-]+", line)}
    assert flags == {*INSIDE[verb], "-h", "--help"}


def test_every_verb_inside_has_a_function() -> None:
    assert set(serving.ACTS) == {verb.name for verb in INSIDE}


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["-h"], 0), ([], 2)])
def test_help_inside_lists_the_verbs(words: list[str], code: int) -> None:
    with pytest.raises(inside.HelpWanted) as wanted:
        inside.parse(words)
    assert wanted.value.exit_code == code
    assert all(f" {verb.name} {first_sentence(verb)}" in " ".join(wanted.value.text.split()) for verb in INSIDE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("show x --json", "yes"),
        ("exec --json -- ls", "yes"),
        ("exec -b x --timeout nonsense --json ls", "yes"),
        ("exec ls --json", "no"),
        ("exec -ti -b x ls --json", "no"),
        ("exec -- ls --json", "no"),
        ("fork x y --json -- ls", "yes"),
        ("fork x y -- ls --json", "no"),
        ("run ls --json", "no"),
        ("rm x --json", "yes"),
        ("nosuch --json", "yes"),
        ("nosuch -- --json", "no"),
    ],
)
def test_it_is_known_whether_an_error_is_to_be_json(words: str, expected: str) -> None:
    name, *argv = words.split()
    assert asks_for_json(VERBS.get(name), argv) is (expected == "yes")


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
        (
            ["--env", "A=1", "--cwd=/srv", "--env=B=", "env"],
            {"env": ["A=1", "B="], "cwd": "/srv", "words": ["env"]},
        ),
    ],
)
def test_the_small_parser_needs_no_click_for_ordinary_command_lines(argv: list[str], expected: dict[str, Any]) -> None:
    found = parse(fast.VERBS["exec"], argv)
    assert found is not None
    given = {name: value for name, value in found.items() if value is not None and value is not False and value != []}
    assert given == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["checkpoint", "c"], {"name": "c"}),
        (["checkpoint", "--force", "c", "-m", "a b", "--tier=live"], {"name": "c", "message": "a b", "tier": "live"}),
        (["restore", "c", "-bx"], {"name": "c", "branch": "x"}),
        (["restore", "--branch", "x", "c", "--new", "y"], {"name": "c", "branch": "x", "new": "y"}),
        (["fork", "c", "x", "y"], {"name": "c", "branches": ["x", "y"]}),
        (["fork", "c", "-n3", "--prefix", "p"], {"name": "c", "count": 3, "prefix": "p"}),
        (["fork", "c", "x", "--json", "--", "ls", "-n"], {"name": "c", "branches": ["x"], "words": ["ls", "-n"]}),
        (["shell", "x", "-d", "--", "ls", "--"], {"argument": "x", "words": ["ls", "--"]}),
    ],
)
def test_nor_for_verbs_with_arguments(argv: list[str], expected: dict[str, Any]) -> None:
    found = parse(fast.VERBS[argv[0]], argv[1:])
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
    assert parse(fast.VERBS[argv[0]], argv[1:]) is None


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
    assert parse(fast.VERBS["exec"], argv) is None


def test_every_verb_has_its_action_and_there_are_no_others() -> None:
    names = {verb.name for verb in every_verb()}
    assert names == set(actions.PLACES)
    for name in names:
        assert callable(actions.action_of(name))


def test_the_verbs_of_the_fast_path_are_verbs_of_the_table() -> None:
    assert fast.VERBS.items() <= VERBS.items()


@pytest.mark.parametrize("name", VERBS)
def test_help_shows_every_option_and_an_example(name: str) -> None:
    verb = VERBS[name]
    command = front.make(verb)
    text = command.get_help(click.Context(command, info_name=name))
    assert all(flag in text for flag in verb.by_flag)
    assert re.search(rf"Example[^\n]*: .*waypoint {name}", text, re.DOTALL)
    assert (f"[-- {verb.words}...]" in text) == bool(verb.words and verb.arguments)


PRINT_FACTS = {
    "events",
    *("ps", "stop", "doctor", "exec", "shell", "daemon status", "checkpoint", "restore", "fork"),
    *("setup", "branch", "branch list", "branch delete", "branch rename", "rm", "log", "show", "undo", "op log"),
    *("apply", "diff", "gc", "du", "evict", "verify", "layer attach", "layer list", "export", "import", "cp", "mount"),
    *("profile list", "profile show", "profile test"),
}


def test_verbs_that_print_facts_and_no_others_can_print_json() -> None:
    assert {verb.name for verb in every_verb() if "--json" in verb.by_flag} == PRINT_FACTS


def test_an_option_that_one_parser_does_not_know_is_found() -> None:
    """A control: the comparison above tells parsers of two tables from each other."""
    other = Verb("ps", (*VERBS["ps"].options, Option(("--new",), "flag", "")), "", "")
    assert parse(other, ["--new"]) != by_click(VERBS["ps"], ["--new"])


# --- numbers

NO_NUMBERS = [
    "0",
    "-1",
    "+1",
    "1_0",
    "1.0",
    " 1",
    "²",
    "\uff11",
    "nan",
    "inf",
    "1e3",
    "",
    str(2**63),
    str(2**64),
    "9" * 5000,
]
NO_SECONDS = ["-1", "+1", "1_0", " 1", "²", "\uff11", "nan", "inf", "1e3", "", ".", "1.1.1", "1000000001", "9" * 5000]


def test_command_line_and_daemon_take_the_same_numbers() -> None:
    assert (verbs.MAX_NUMBER, verbs.MAX_SECONDS) == (requests.MAX_NUMBER, requests.MAX_SECONDS)


@pytest.mark.parametrize("text", NO_NUMBERS, ids=lambda text: f"<{text[:20]}>")
def test_what_is_no_number_is_refused_by_both_parsers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_number(text) is None
    for words in (
        ["log", f"--limit={text}"],
        ["op", "log", f"-n{text}"],
        ["undo", "--", text],
        ["fork", "x", f"-n{text}"],
    ):
        assert front.run([*words, "--home=/nonexistent"]) == 2
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("text", NO_SECONDS, ids=lambda text: f"<{text[:20]}>")
def test_what_is_no_number_of_seconds_is_refused_by_both_parsers(text: str) -> None:
    assert parse_seconds(text) is None
    assert front.run(["exec", f"--timeout={text}", "--home=/nonexistent", "true"]) == 2


def test_the_largest_numbers_are_taken() -> None:
    assert parse_number(str(2**63 - 1)) == parse_number(f"000{2**63 - 1}") == 2**63 - 1
    assert parse_seconds("1000000000.0") == 1e9


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("64k", 65_536),
        ("1.5G", 3 << 29),
        ("2GiB", 2 << 30),
        ("3mb", 3 << 20),
        ("1T", 1 << 40),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "M", "1.5", "1e3", "1 G", "1GG", "1X", "inf", "9" * 30, "9" * 30 + "T", "0.0001K", "\u0663M", "1B"],
)
def test_what_is_no_size_is_refused_by_both_parsers(text: str) -> None:
    assert parse_size(text) is None
    assert front.run(["shell", f"--memory={text}", "--home=/nonexistent"]) == 2
