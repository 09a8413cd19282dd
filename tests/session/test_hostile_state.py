"""What a session's processes have put in the place of their shell's state is no command, and costs nobody else time."""

import pytest

from waypoint.terminal.shell.dump import ShellKind, parse


def state(limits: bytes) -> bytes:
    return b"d\0\0\0/\0m\0\0\x00022\0l\0\0\0" + limits + b"\0e\0\0\0\0"


@pytest.mark.parametrize(
    ("kind", "line"),
    [("bash", b"open files                          (-n) %s"), ("zsh", b"-n: file descriptors                %s")],
)
def test_a_limit_is_a_number_and_its_line_is_short(kind: ShellKind, line: bytes) -> None:
    for good in (b"0", b"20000", b"unlimited"):
        assert parse(state(b"first\n" + line % good + b"\n"), kind).limits == {"n": good}
    for bad in (b"$(touch${IFS}ran)", b";x", b"1;x", b"-1", b"1 x"):
        assert parse(state(line % bad), kind).limits == {}
    assert parse(state(line.replace(b" %s", b" " * 10_000 + b"%s") % b"1"), kind).limits == {}
