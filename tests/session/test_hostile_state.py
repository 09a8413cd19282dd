"""A session's processes may replace the saved state of their shell. Such a state runs no command and blocks nobody."""

import pytest

from waypoint.terminal.shell.dump import MOST_ENTRIES, ShellKind, parse


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
