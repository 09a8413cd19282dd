"""Old output that is shown again makes a terminal answer nothing, and reaches neither clipboard nor printer."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shellwrap.replay_filter import ReplayFilter

HARMFUL = [
    *(b"\x1b[6n", b"\x1b[5n", b"\x1b[?6n", b"\x1b[c", b"\x1b[>c", b"\x1b[=c", b"\x1bZ", b"\x05", b"\x1b[x"),
    *(b"\x1b[?25$p", b"\x1b[4$p", b"\x1b[>q", b"\x1b[?u", b"\x1b[21t", b"\x1b[18t", b"\x1b[8;9;9t", b"\x1b[5i"),
    *(b"\x1b[?1;1;0S", b"\x1b[1;1;1;1;1;1*y", b"\x1b[?4m", b"\x1b[2h", b"\x1b]52;c;?\x07", b"\x1b]52;c;aGk=\x1b\\"),
    *(b"\x1b]11;?\x07", b"\x1b]4;1;?\x1b\\", b"\x1b]50;?\x07", b"\x1b]1337;File=:AA\x07", b"\x1bP$qm\x1b\\"),
    *(b"\x1bP+q544e\x1b\\", b"\x1b_Ga=q,i=1;AAAA\x1b\\", b"\x1b^x\x1b\\", b"\x1bXx\x1b\\", b"\x1b%@"),
    *(b"\xc2\x9b6n", b"\xc2\x9d52;c;?\xc2\x9c", b"\xc2\x90$qm\xc2\x9c", b"\x9b6n", b"\x1b[\x1b[6n", b"\x1b]0;\x1b[6n"),
]
SHOWN = [
    *(b"plain \xc3\xa9\xe2\x82\xac", b"\r\n\t\b\x07", b"\x1b[1;31mred\x1b[m", b"\x1b[2J\x1b[1;1H\x1b[K\x1b[3A"),
    *(
        b"\x1b[?1049h\x1b[?25l\x1b[?1049l\x1b[?25h",
        b"\x1b]0;a title? yes\x07",
        b"\x1b]8;;http://x/?a=b\x1b\\l\x1b]8;;\x1b\\",
    ),
    *(
        b"\x1b(0lqk\x1b(B",
        b"\x1b7\x1b8\x1bM",
        b"\x1b[4 q",
        b"\x1b]10;#ffffff\x07",
        b"\x1b[22;0t\x1b[23;0t",
        b"\x1b[>4;2m",
    ),
]
_REPORTS = re.compile(r"[?>=]?[\d;]*(?:[nxciy]|\$p)|\?u|>q|[0-9;]*t|\?.*[mS]|.*\*y|2[hl]")


STRINGS = "]PX^_"


def dispatched(data: bytes) -> list[tuple[str, str]]:
    """The sequences that a terminal acts upon, as (introducer, rest): a state machine written from the table of
    vt100.net/emu/dec_ansi_parser, character by character.
    """
    text = data.decode("utf-8", "surrogateescape")  # a terminal without UTF-8 takes a byte from 0x80 to 0x9f as control
    codes = [ord(sign) & ~0xDC00 if "\udc80" <= sign < "\udca0" else ord(sign) for sign in text]
    signs = "".join(f"\x1b{chr(code - 0x40)}" if 0x80 <= code < 0xA0 else chr(code) for code in codes)
    found: list[tuple[str, str]] = []
    state, body = "", ""
    for one in signs:
        is_over = {"": False, "\x1b": "0" <= one <= "~", "[": "@" <= one <= "~", "]": one == "\x07"}.get(state, False)
        if one in "\x1b\x18\x1a":
            found += [(state, body)] if state and state in STRINGS else []  # whatever follows the ESC
            state, body = one.strip("\x18\x1a"), ""
        elif state == "\x1b" and not body and one in f"[{STRINGS}":
            state = one
        elif is_over:
            found.append((state, body + one.strip("\x07")))
            state, body = "", ""
        elif one < " " and (not state or state not in STRINGS):
            found.append(("control", one))  # also in the middle of a sequence
        elif state:
            body += one
    return [*found, *([(state, body)] if state else [])]


def is_harmless(introducer: str, rest: str) -> bool:
    if introducer == "[":
        return _REPORTS.fullmatch(rest) is None or re.fullmatch(r"2[23](;\d*)*t", rest) is not None
    if introducer == "]":
        return not rest.startswith(("52", "50", "9", "1337", "777")) and (
            "?" not in rest or (rest[1:2] == ";" and rest[0] in "0128")
        )
    if introducer == "control":
        return rest in "\x07\b\t\n\x0b\x0c\r\x0e\x0f"
    return introducer == "\x1b" and rest not in ("Z", "%@", "%G")


def test_harmful_sequences_are_dropped_and_others_shown() -> None:
    for one in HARMFUL:
        shown = ReplayFilter().feed(b"a" + one + b"b")
        assert all(is_harmless(*each) for each in dispatched(shown)), one
        assert any(not is_harmless(*each) for each in dispatched(one)), f"the control: {one!r}"
    assert [one for one in SHOWN if ReplayFilter().feed(one) != one] == []


PIECES = st.lists(
    st.one_of(
        st.sampled_from([*HARMFUL, *SHOWN]),
        st.sampled_from(
            [b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b\\", b"\x07", b"\x18", b"6n", b";?", b"\xc2", b"52;c;"]
        ),
        st.binary(max_size=4),
    ),
    max_size=12,
)


@given(PIECES, st.integers(1, 7))
def test_whatever_a_program_writes_a_terminal_answers_nothing(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    whole, split = ReplayFilter(), ReplayFilter()
    shown = whole.feed(data)
    assert b"".join(split.feed(data[at : at + size]) for at in range(0, len(data), size)) == shown
    assert whole.rest() == split.rest()
    assert [one for one in dispatched(shown) if not is_harmless(*one)] == []
    again = ReplayFilter()
    assert (again.feed(shown), again.rest()) == (shown, b"")


def test_an_endless_sequence_takes_no_memory_and_hides_only_itself() -> None:
    for begin, end in ((b"\x1b]9;", b"\x07"), (b"\x1bP", b"\x1b\\"), (b"\x1b_", b"\x1b\\")):
        replay = ReplayFilter()
        assert replay.feed(begin) == b""
        for _ in range(100):
            assert replay.feed(b"x" * 1000) == b""
            assert len(replay.rest()) < 10_000
        assert replay.feed(end + b"after") == b"after"
