"""The table of commands, its parser and its help texts, outside and inside a session."""

import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.cli import entry
from waypoint.cli.help import help_of
from waypoint.model import requests, verbs
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import (
    HelpRequested,
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
from waypoint.model.verbs.table import BRANCHES, INSIDE, ONE_BRANCH, WAYPOINT, Group, every_verb, find
from waypoint.service.inside import serving

VERBS = {verb.name: verb for verb in every_verb()}
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


def required_words(verb: Verb) -> list[str]:
    words = ["3" if argument.is_number else argument.metavar.lower() for argument in verb.arguments]
    return words if verb.arguments or not verb.words else ["--", "true"]


def written(flag: str, option: Option) -> list[str]:
    value = option.choices[0] if option.choices else VALUES[option.kind]
    return [flag] if value is None else [flag, value]


def not_default(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value not in (None, []) and value is not False}


def check_none(failed: list[Any]) -> None:
    """Fail with all entries of `failed`, if there are any."""
    assert not failed, "\n".join(map(str, failed))


def refusal(line: list[str]) -> str:
    """Return the error for a command line, or "" if it is accepted."""
    try:
        verb, words = find(line)
        parse(verb, words)
    except UsageProblem as error:
        return str(error)
    return ""


def test_every_spelling_of_every_option_is_accepted_and_sets_its_parameter_only() -> None:
    failed = []
    for verb in VERBS.values():
        plain = required_words(verb)
        for flag, option in verb.by_flag.items():
            found = parse(verb, [*written(flag, option), *plain])
            others = {name: value for name, value in found.items() if name != option.name}
            before = {name: value for name, value in parse(verb, plain).items() if name != option.name}
            if found[option.name] in (None, False, []) or others != before:
                failed.append((verb.name, flag, found))
    check_none(failed)


def test_a_command_line_is_split_into_options_arguments_and_a_command_to_run() -> None:
    rows: list[tuple[str, dict[str, Any]]] = [
        ("exec true", {"words": ["true"]}),
        ("exec -- --json", {"words": ["--json"]}),
        ("exec ls --json", {"words": ["ls", "--json"]}),
        ("exec --tty -i -- cat", {"tty": True, "interactive": True, "words": ["cat"]}),
        ("exec -b x --timeout 5 echo -b y", {"branch": "x", "timeout": 5.0, "words": ["echo", "-b", "y"]}),
        (
            "exec -bx --timeout=1.5 -it cat",
            {"branch": "x", "timeout": 1.5, "interactive": True, "tty": True, "words": ["cat"]},
        ),
        (
            "exec --branch a/b --wait-prompt 0 --json -- a -- b",
            {"branch": "a/b", "wait_prompt": 0.0, "json": True, "words": ["a", "--", "b"]},
        ),
        (
            "exec --env A=1 --cwd=/srv --env=B= env",
            {"env": ["A=1", "B="], "cwd": "/srv", "words": ["env"]},
        ),
        ("checkpoint c", {"name": "c"}),
        ("checkpoint -- -c", {"name": "-c"}),
        ("checkpoint --force c -m -x --tier=live", {"name": "c", "message": "-x", "tier": "live", "force": True}),
        ("restore c -bx", {"name": "c", "branch": "x"}),
        ("restore --branch x c --new y", {"name": "c", "branch": "x", "new": "y"}),
        ("fork c x y", {"name": "c", "branches": ["x", "y"]}),
        ("fork c -n3 --prefix p", {"name": "c", "count": 3, "prefix": "p"}),
        ("fork c x --json -- ls -n", {"name": "c", "branches": ["x"], "json": True, "words": ["ls", "-n"]}),
        ("shell x -d -- ls --", {"argument": "x", "detach": True, "words": ["ls", "--"]}),
        ("undo -- 17", {"number": 17}),
        ("--home /h --json ps -a", {"home": "/h", "json": True, "all": True}),
        ("--home=/h branch --home /i list", {"home": "/i"}),
        ("branch --json", {"json": True}),
        ("branch --json list", {"json": True}),
        ("--version", {"version": True}),
    ]
    failed = []
    for line, expected in rows:
        found = not_default(parse(*find(line.split())))
        if found != expected:
            failed.append((line, found))
    check_none(failed)


def test_wrong_usage_is_reported_with_the_word_the_reason_and_the_help_to_read() -> None:
    rows = {
        "pss": r"waypoint pss: there is no such command; did you mean ps\?\n  next: waypoint --help",
        "branch lst": r"waypoint branch lst: .*; did you mean list\?\n  next: waypoint branch --help",
        "--nosuch ps": "waypoint --nosuch: there is no such option",
        "--home": "waypoint --home: its value is missing: --home DIR",
        "ps --jsn": r"waypoint ps --jsn: there is no such option; did you mean --json\?\n  next: waypoint ps --help",
        "ps --json=1": "waypoint ps --json: it takes no value",
        "ps x": r"waypoint ps x: too many arguments; usage: waypoint ps \[OPTIONS\]",
        "restore": r"waypoint restore: NAME is missing; usage: waypoint restore \[OPTIONS\] NAME",
        "checkpoint a b": "waypoint checkpoint b: too many arguments",
        "checkpoint a --tier x": "waypoint checkpoint --tier: 'x' is not one of auto, live, respawn, files",
        "restore a -b": "waypoint restore -b: its value is missing: -b, --branch BRANCH",
        "fork": "NAME is missing",
        "fork a -n 0": "waypoint fork -n: '0' is not a whole number from 1 to 256",
        "fork a -n -1": "'-1' is not a whole number from 1 to 256",
        "shell a b": "too many arguments",
        "shell a --memory x": r"shell --memory: 'x' is not a size, such as 512M or 2G \(from 64M to 8388607T\)",
        "exec": "CMD is missing",
        "exec --": "CMD is missing",
        "exec -tx ls": "waypoint exec -x: there is no such option",
        "exec --timeout 0 y": r"'0' is not a number of seconds, such as 90 or 0.5 \(above 0, at most 1000000000\)",
        "exec -b": "its value is missing",
        "branch rename a": "NEW is missing",
        "undo x": "waypoint undo: 'x' is not a whole number from 1 to",
        "--json attach": "waypoint attach --json: there is no such option",
    }
    failed = []
    for line, expected in rows.items():
        said = refusal(line.split())
        if not re.search(f"cannot understand .*{expected}", said) or "\n  next: waypoint" not in said:
            failed.append((line, said))
    check_none(failed)


def test_help_can_be_requested_among_other_words_even_wrong_ones() -> None:
    for line in (
        "--help",
        "-h",
        "ps -h",
        "exec --help",
        "branch --help",
        "fork x -n 3 --help",
        "op -h",
        "log -ah",
        "log -n x -h",
    ):
        with pytest.raises(HelpRequested):
            parse(*find(line.split()))


@pytest.mark.parametrize("examples", [1000, pytest.param(5000, marks=pytest.mark.soak(part="floods"))])
def test_random_words_are_parsed_alike_inside_and_outside_or_refused(examples: int) -> None:
    @settings(max_examples=examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from([*VERBS.values(), *INSIDE]))
        words = st.sampled_from([*verb.by_flag, "--json"]) | st.sampled_from(WORDS) | st.sampled_from(FLAGS)
        argv = data.draw(st.lists(words, max_size=6))
        found = parsed(verb, argv)
        if verb in INSIDE and verb.name in VERBS and found is not None:
            within = inside_parsed([*verb.name.split(), *argv])
            if within is not None:
                outside = parsed(VERBS[verb.name], argv)
                assert within == found, (verb.name, argv)
                assert within.items() <= (outside or {}).items(), (verb.name, argv)

    check()


def parsed(verb: Verb, argv: list[str]) -> dict[str, Any] | None:
    try:
        return parse(verb, argv)
    except (UsageProblem, HelpRequested):
        return None


def inside_parsed(argv: list[str]) -> dict[str, Any] | None:
    try:
        return inside.parse(argv)[1]
    except (UsageProblem, inside.HelpWanted):
        return None


def test_inside_a_session_no_command_to_run_is_accepted() -> None:
    with pytest.raises(UsageProblem, match="a command to run cannot be given inside a session"):
        inside.parse(["fork", "ready", "a", "--", "make", "test"])


def test_inside_a_session_an_unknown_command_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageProblem, match=r"the commands are checkpoint, .* and stop; did you mean log\?"):
        inside.parse(["lg"])


def test_help_inside_shows_the_options_that_work_there_and_no_others() -> None:
    failed = []
    for verb in INSIDE:
        with pytest.raises(inside.HelpWanted) as wanted:
            inside.parse([*verb.name.split(), "--help"])
        spelled = {word.strip(",") for word in re.findall(r"^ +(-.+?)(?:  |$)", wanted.value.text, re.MULTILINE)}
        flags = {flag for line in spelled for flag in re.findall(r"(?<!\S)--?[a-z-]+", line)}
        if wanted.value.exit_code != 0 or flags != {*verb.by_flag, "-h", "--help"}:
            failed.append((verb.name, wanted.value.exit_code, flags))
    check_none(failed)


def test_help_inside_mentions_only_options_that_work_there() -> None:
    of_shell, failed = {"--bind", "--net"}, []
    for verb in INSIDE:
        for words in re.findall(r"waypoint ((?:[^;&']|'[^']*')+)", verb.epilog):
            inside.parse(shlex.split(words))
        mentioned = set(re.findall(r"--[a-z]+[a-z-]*", re.sub(r"'waypoint [^']*'", "", verb.help)))
        if mentioned - of_shell - set(verb.by_flag):
            failed.append((verb.name, mentioned))
    check_none(failed)


def test_every_verb_that_takes_a_branch_takes_it_as_an_option_too() -> None:
    lacking = [
        verb.name
        for verb in every_verb()
        if {ONE_BRANCH, BRANCHES} & {*verb.arguments} and {"-b", "--branch"} - {*verb.by_flag}
    ]
    check_none(lacking)


def test_help_inside_lists_the_verbs() -> None:
    for words, code in ((["--help"], 0), (["-h"], 0), ([], 2)):
        with pytest.raises(inside.HelpWanted) as wanted:
            inside.parse(words)
        assert wanted.value.exit_code == code, words
        assert all(re.search(rf"^  {verb.name} ", wanted.value.text, re.MULTILINE) for verb in INSIDE), words


def test_every_verb_has_a_function() -> None:
    assert set(VERBS) == set(entry.PLACES)
    assert all(callable(entry.action_of(name)) for name in VERBS)
    assert set(serving.ACTS) == {verb.name for verb in INSIDE}
    assert fast.VERBS.items() <= VERBS.items()


def test_help_shows_every_option_and_an_example_or_the_members() -> None:
    failed = []
    for verb in [WAYPOINT, *VERBS.values()]:
        text = help_of(verb)
        missing = [flag for flag in verb.by_flag if flag not in text]
        if isinstance(verb, Group):
            missing += [word for word in verb.by_word if not re.search(rf"^  {word} ", text, re.MULTILINE)]
        elif not re.search(rf"Example[^\n]*: .*waypoint {verb.name}", text, re.DOTALL):
            missing.append("an example")
        if missing or not text.startswith(f"Usage: {verb.command} [OPTIONS]"):
            failed.append((verb.name, missing))
    check_none(failed)


def test_an_error_is_json_if_the_verb_was_given_json() -> None:
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
    check_none([line for line in found if found[line] is not (line in as_json)])


PRINT_FACTS = {
    "events",
    *(
        "ps",
        "port",
        "stop",
        "doctor",
        "exec",
        "run",
        "shell",
        "daemon status",
        "checkpoint",
        "point",
        "restore",
        "rewind",
    ),
    "fork",
    *(
        "branch",
        "branch list",
        "branch delete",
        "prove",
        "rm",
        "log",
        "list",
        "show",
        "adopt",
        "search",
        "handoff",
        "diff",
        "apply",
        "ls",
        "base create",
        "base list",
        "base rm",
        "base show",
        "layer list",
        "layer get",
        "layer attach",
        "profile list",
        "profile show",
        "profile test",
        "undo",
        "op log",
        "verify",
        "evict",
        "export",
        "import",
        "gc",
        "du",
        "install",
        "uninstall",
    ),
}


def test_verbs_that_print_facts_and_no_others_have_json() -> None:
    assert {verb.name for verb in every_verb() if "--json" in verb.by_flag} == PRINT_FACTS


# --- numbers


def test_command_line_and_daemon_accept_the_same_numbers() -> None:
    assert (verbs.MAX_NUMBER, verbs.MAX_SECONDS) == (requests.MAX_NUMBER, requests.MAX_SECONDS)
    assert parse_number(str(2**63 - 1)) == parse_number(f"000{2**63 - 1}") == 2**63 - 1
    assert parse_seconds("1000000000.0") == 1e9
    sizes = {"1": 1, "4096": 4096, "64k": 65_536, "1.5G": 3 << 29, "2GiB": 2 << 30, "3mb": 3 << 20, "1T": 1 << 40}
    check_none([(text, parse_size(text)) for text, size in sizes.items() if parse_size(text) != size])


def test_wrong_numbers_are_refused() -> None:
    common = ["-1", "+1", "1_0", " 1", "²", "\uff11", "nan", "inf", "1e3", "", "9" * 5000]
    numbers = [*common, "0", "1.0", str(2**63), str(2**64)]
    seconds = [*common, ".", "1.1.1", "1000000001"]
    sizes = [*common, "0", "M", "1.5", "1 G", "1GG", "1X", "1B", "9" * 30, "9" * 30 + "T", "0.0001K", "\u0663M"]
    failed = []
    for text in numbers:
        lines = (
            ["log", f"--limit={text}"],
            ["op", "log", f"-n{text}"],
            ["undo", "--", text],
            ["fork", "x", "-n", text],
        )
        if parse_number(text) is not None or not all(map(refusal, lines)):
            failed.append(text[:20])
    failed += [
        one[:20] for one in seconds if parse_seconds(one) is not None or not refusal(["exec", f"--timeout={one}", "x"])
    ]
    failed += [one[:20] for one in sizes if parse_size(one) is not None or not refusal(["shell", f"--memory={one}"])]
    check_none(failed)
