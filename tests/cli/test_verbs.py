"""One table of verbs makes the small parser, click's commands and the requests from inside: they read words alike."""

import re
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.cli import actions, front
from waypoint.model import requests, verbs
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import (
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
from waypoint.model.verbs.table import INSIDE, Group, every_verb
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


def check_none(failed: list[Any]) -> None:
    """Fails with all rows of a table that are not as they should be."""
    assert not failed, "\n".join(map(str, failed))


def test_every_way_to_write_every_option_is_read_alike() -> None:
    failed = []
    for verb in VERBS.values():
        for flag, option in verb.by_flag.items():
            argv = [*written(flag, option), *needed(verb)]
            found = parse(verb, argv)
            if found is None or found != by_click(verb, argv) or found[option.name] in (None, False, []):
                failed.append((verb.name, argv, found, by_click(verb, argv)))
    check_none(failed)


def check_alike(verb: Verb, argv: list[str]) -> None:
    """What the small parser accepts click reads the same; what click refuses the small parser does not accept."""
    found = parse(verb, argv)
    if found is not None:
        assert found == by_click(verb, argv), (verb.name, argv)


EXAMPLES = pytest.mark.parametrize("examples", [1000, pytest.param(5000, marks=pytest.mark.soak(part="floods"))])


@EXAMPLES
def test_what_the_small_parser_accepts_click_reads_the_same(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*fast.VERBS]) | st.sampled_from([*VERBS]))
        check_alike(VERBS[name], data.draw(words_for(VERBS[name])))

    check()


def test_and_so_it_does_for_command_lines_that_were_wrong_once() -> None:
    for verb in fast.VERBS.values():
        for line in ("--tty -i -- cat", "ls --json", "-b x --timeout 5 echo -b y"):
            check_alike(verb, line.split())


@EXAMPLES
def test_what_is_accepted_inside_click_reads_the_same(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from([*INSIDE]))
        words = st.sampled_from(WORDS) | st.sampled_from(INSIDE[verb] or WORDS)
        argv = data.draw(st.lists(words | st.sampled_from(list(verb.by_flag) or WORDS), max_size=6))
        found = by_inside([*verb.name.split(), *argv])
        if found is not None:
            assert found == (verb, by_click(verb, argv)), (verb.name, argv)

    check()


def test_inside_the_options_of_the_table_are_accepted_and_no_others() -> None:
    failed = []
    for verb in INSIDE:
        for flag, option in verb.by_flag.items():
            argv = [*written(flag, option), *needed(verb)]
            found = by_inside([*verb.name.split(), *argv])
            is_alike = found is None or found[1] == by_click(verb, argv)
            if (found is not None) != (flag in INSIDE[verb]) or not is_alike:
                failed.append((verb.name, argv, found and found[1]))
    check_none(failed)


def test_help_inside_tells_the_options_that_work_there_and_no_others() -> None:
    failed = []
    for verb in INSIDE:
        with pytest.raises(inside.HelpWanted) as wanted:
            inside.parse([*verb.name.split(), "--help"])
        spelled = {word.strip(",") for word in re.findall(r"^ +(-.+?)(?:  |$)", wanted.value.text, re.MULTILINE)}
        flags = {flag for line in spelled for flag in re.findall(r"(?<!\S)--?[a-z-]+", line)}
        if wanted.value.exit_code != 0 or flags != {*INSIDE[verb], "-h", "--help"}:
            failed.append((verb.name, wanted.value.exit_code, flags))
    check_none(failed)


def test_every_verb_inside_has_a_function() -> None:
    assert set(serving.ACTS) == {verb.name for verb in INSIDE}


def test_help_inside_lists_the_verbs() -> None:
    for words, code in ((["--help"], 0), (["-h"], 0), ([], 2)):
        with pytest.raises(inside.HelpWanted) as wanted:
            inside.parse(words)
        assert wanted.value.exit_code == code, words
        assert all(re.search(rf"^  {verb.name} ", wanted.value.text, re.MULTILINE) for verb in INSIDE), words


def test_it_is_known_whether_an_error_is_to_be_json() -> None:
    as_json = (
        "show x --json",
        "exec --json -- ls",
        "exec -b x --timeout nonsense --json ls",
        "fork x y --json -- ls",
        "rm x --json",
        "nosuch --json",
    )
    in_words = (
        "exec ls --json",
        "exec -ti -b x ls --json",
        "exec -- ls --json",
        "fork x y -- ls --json",
        "run ls --json",
        "nosuch -- --json",
    )
    found = {}
    for line in (*as_json, *in_words):
        name, *argv = line.split()
        found[line] = asks_for_json(VERBS.get(name), argv)
    check_none(
        [line for line in as_json if found[line] is not True] + [line for line in in_words if found[line] is not False]
    )


def test_the_small_parser_needs_no_click_for_ordinary_command_lines() -> None:
    rows: list[tuple[str, list[str], dict[str, Any]]] = [
        ("exec", ["true"], {"words": ["true"]}),
        ("exec", ["--", "--json"], {"words": ["--json"]}),
        ("exec", ["ls", "--json"], {"words": ["ls", "--json"]}),
        (
            "exec",
            ["-bx", "--timeout=1.5", "-it", "cat"],
            {"branch": "x", "timeout": 1.5, "interactive": True, "tty": True, "words": ["cat"]},
        ),
        (
            "exec",
            ["--branch", "a/b", "--wait-prompt", "0", "--json", "--", "a", "--", "b"],
            {"branch": "a/b", "wait_prompt": 0.0, "json": True, "words": ["a", "--", "b"]},
        ),
        (
            "exec",
            ["--env", "A=1", "--cwd=/srv", "--env=B=", "env"],
            {"env": ["A=1", "B="], "cwd": "/srv", "words": ["env"]},
        ),
        ("checkpoint", ["c"], {"name": "c"}),
        (
            "checkpoint",
            ["--force", "c", "-m", "a b", "--tier=live"],
            {"name": "c", "message": "a b", "tier": "live", "force": True},
        ),
        ("restore", ["c", "-bx"], {"name": "c", "branch": "x"}),
        ("restore", ["--branch", "x", "c", "--new", "y"], {"name": "c", "branch": "x", "new": "y"}),
        ("fork", ["c", "x", "y"], {"name": "c", "branches": ["x", "y"]}),
        ("fork", ["c", "-n3", "--prefix", "p"], {"name": "c", "count": 3, "prefix": "p"}),
        (
            "fork",
            ["c", "x", "--json", "--", "ls", "-n"],
            {"name": "c", "branches": ["x"], "json": True, "words": ["ls", "-n"]},
        ),
        ("shell", ["x", "-d", "--", "ls", "--"], {"argument": "x", "detach": True, "words": ["ls", "--"]}),
    ]
    failed = []
    for name, argv, expected in rows:
        found = parse(fast.VERBS[name], argv)
        given = found and {one: value for one, value in found.items() if value not in (None, []) and value is not False}
        if given != expected:
            failed.append((name, argv, given))
    check_none(failed)


def test_what_is_not_plainly_right_is_left_to_click() -> None:
    rows = [
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
        ["exec"],
        ["exec", "--"],
        ["exec", "--nosuch", "x"],
        ["exec", "--help"],
        ["exec", "-h"],
        ["exec", "--timeout", "x", "y"],
        ["exec", "--timeout", "0", "y"],
        ["exec", "--timeout", "-1", "y"],
        ["exec", "--json=1", "x"],
        ["exec", "-b"],
    ]
    check_none([argv for argv in rows if parse(fast.VERBS[argv[0]], argv[1:]) is not None])


def test_every_verb_has_its_action_and_there_are_no_others() -> None:
    names = {verb.name for verb in every_verb()}
    assert names == set(actions.PLACES)
    for name in names:
        assert callable(actions.action_of(name))


def test_the_verbs_of_the_fast_path_are_verbs_of_the_table() -> None:
    assert fast.VERBS.items() <= VERBS.items()


def test_help_shows_every_option_and_an_example() -> None:
    failed = []
    for name, verb in VERBS.items():
        command = front.make(verb)
        text = command.get_help(click.Context(command, info_name=name))
        missing = [flag for flag in verb.by_flag if flag not in text]
        if missing or not re.search(rf"Example[^\n]*: .*waypoint {name}", text, re.DOTALL):
            failed.append((name, missing))
    check_none(failed)


PRINT_FACTS = {
    "events",
    *("ps", "stop", "doctor", "exec", "shell", "daemon status", "checkpoint", "restore", "fork"),
    *("branch", "branch list", "branch delete", "rm", "log", "show", "undo", "op log", "gc", "du"),
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


def test_what_is_no_number_is_refused_by_both_parsers(capsys: pytest.CaptureFixture[str]) -> None:
    failed = []
    for text in NO_NUMBERS:
        rows = (
            ["log", f"--limit={text}"],
            ["op", "log", f"-n{text}"],
            ["undo", "--", text],
            ["fork", "x", f"-n{text}"],
        )
        codes = [front.run([*words, "--home=/nonexistent"]) for words in rows]
        if parse_number(text) is not None or codes != [2] * len(rows) or "Traceback" in capsys.readouterr().err:
            failed.append((text[:20], codes))
    check_none(failed)


def test_what_is_no_number_of_seconds_is_refused_by_both_parsers() -> None:
    failed = []
    for text in NO_SECONDS:
        code = front.run(["exec", f"--timeout={text}", "--home=/nonexistent", "true"])
        if parse_seconds(text) is not None or code != 2:
            failed.append((text[:20], code))
    check_none(failed)


def test_the_largest_numbers_are_taken() -> None:
    assert parse_number(str(2**63 - 1)) == parse_number(f"000{2**63 - 1}") == 2**63 - 1
    assert parse_seconds("1000000000.0") == 1e9


def test_a_size_is_read_in_powers_of_1024() -> None:
    sizes = {
        "1": 1,
        "4096": 4096,
        "64k": 65_536,
        "1.5G": 3 << 29,
        "2GiB": 2 << 30,
        "3mb": 3 << 20,
        "1T": 1 << 40,
    }
    check_none([(text, parse_size(text)) for text, size in sizes.items() if parse_size(text) != size])


def test_what_is_no_size_is_refused_by_both_parsers() -> None:
    wrong = [
        "",
        "0",
        "-1",
        "M",
        "1.5",
        "1e3",
        "1 G",
        "1GG",
        "1X",
        "inf",
        "9" * 30,
        "9" * 30 + "T",
        "0.0001K",
        "\u0663M",
    ]
    failed = []
    for text in [*wrong, "1B"]:
        code = front.run(["shell", f"--memory={text}", "--home=/nonexistent"])
        if parse_size(text) is not None or code != 2:
            failed.append((text, code))
    check_none(failed)
