"""A session's processes may replace the saved state of their shell. Such a state runs no command and blocks nobody."""

import pytest

from waypoint.terminal.shell.dump import MOST_ENTRIES, ShellKind, parse
from waypoint.terminal.shell.script import compose


def state(limits: bytes) -> bytes:
    return b"d\0\0\0/\0m\0\0\x00022\0l\0\0\0" + limits + b"\0e\0\0\0\0"


@pytest.mark.parametrize(
    ("kind", "line"),
    [("bash", b"open files                          (-n) %s"), ("zsh", b"-n: file descriptors                %s")],
)
def test_limits_in_a_state_are_numbers_on_short_lines(kind: ShellKind, line: bytes) -> None:
    for good in (b"0", b"20000", b"unlimited"):
        assert parse(state(b"first\n" + line % good + b"\n"), kind).limits == {"n": good}
    for bad in (b"$(touch${IFS}ran)", b";x", b"1;x", b"-1", b"1 x"):
        assert parse(state(line % bad), kind).limits == {}
    assert parse(state(line.replace(b" %s", b" " * 10_000 + b"%s") % b"1"), kind).limits == {}


LINES = b"".join(b"declare -- a%d=1\n" % number for number in range(MOST_ENTRIES + 1))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (b"v\0\0\0" + LINES + b"\0", "variables"),
        (b"l\0\0\0" + b"\n" * len(LINES) + b"\0", "variables"),
        (b"t\0\0\0" + b"' a\n" * len(LINES) + b"\0", "variables"),
        (b"g\0\0\0a\0" * (MOST_ENTRIES + 1), "variables"),
        (b"a\0x\0\0y\0" * (MOST_ENTRIES + 1), "variables"),
        (b"o\0\0a:" + b"a:" * len(LINES) + b"\0b\0", "options"),
    ],
    ids=["variables", "limits", "traps", "arguments", "aliases", "options"],
)
def test_a_state_with_too_many_entries_is_refused(records: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"has more .*{said}"):
        parse(state(b"")[:-5] + records + b"e\0\0\0\0", "bash")


def test_a_state_with_the_highest_allowed_number_of_entries_is_accepted() -> None:
    most = state(b"")[:-5] + b"v\0\0\0" + LINES[: LINES.rindex(b"declare")] + b"\0e\0\0\0\0"
    assert len(parse(most, "bash").variables) == MOST_ENTRIES


def zsh_state(variables: bytes, traps: bytes = b"") -> bytes:
    types = b"p\0\0\x004\0" + b"".join(name + b"\0scalar\0" for name in (b"a", b"b", b"c", b"d"))
    records = b"v\0\0\0" + variables + b"\0" + types + b"t\0\0\0" + traps + b"\0"
    return state(b"")[:-5] + records + b"e\0\0\0\0"


@pytest.mark.parametrize(
    "text", [rb"$'\M-''; touch ran; : '", rb"$'\M-\'", rb"$'\M-\C-\'", rb"$'\M-\C-x'", b"$(x)", b"x;y", b"`x`"]
)
def test_a_zsh_value_that_its_text_does_not_tell_is_left_out_and_reported(text: bytes) -> None:
    then = parse(zsh_state(b"typeset a=" + text + b"\ntypeset b=good\n", b"trap -- " + text + b" USR1\n"), "zsh")
    script = compose(parse(zsh_state(b""), "zsh"), then, "it")
    assert text not in script.body
    assert b"typeset b=good\n" in script.body
    assert [line.partition(":")[0] for line in script.stays] == [
        "the variable a stays as it is",
        "the trap of USR1 is not set",
    ]


def test_the_byte_1c_in_a_zsh_value_of_any_version_is_restored() -> None:
    then = parse(zsh_state(rb"typeset a=$'\C-\\'; touch ran; : \C-\'" + b"\n"), "zsh")
    assert then.variables[b"a"].text == rb"typeset a=$'\034\'; touch ran; : \034'"
    assert then.unclear == set()
