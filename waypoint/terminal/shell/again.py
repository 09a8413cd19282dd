"""The shell text that starts a program again, as the manifest has it.

Every word of the program is a literal in the shell's own quoting. The environment is that of the program, not that of
the shell, but for what tells it which session it is in.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from waypoint.model.late_pattern import late_pattern
from waypoint.model.paths import OWN_FOLDER
from waypoint.processes.respawn.manifest import Program, StandardStream
from waypoint.terminal.shell.words import READ_BACK, quoted

_NAME = late_pattern(rb"[A-Za-z_][A-Za-z0-9_.%()-]*=")


class JobText(NamedTuple):
    """`body`: the text that becomes the programs, which the shell finds in its run folder's file `back`. `command`: the
    command line that evaluates it. The body has the environment of the programs, with its secrets: a shell that traces
    (`set -x`) shows the command line, and not the body.
    """

    body: bytes
    command: str


def job(line: Sequence[Program], own: Mapping[str, str], status: int) -> JobText:
    """What starts a pipeline of programs as the shell's job in the background, or one service, which is no job of the
    shell. `own`: variables of the session itself. `status`: what `$?` is afterwards.
    """
    first = line[0]
    is_service = first.role == "service"
    parts = [_program(line, place, own) for place in range(len(line))]
    body = parts[0] if len(parts) == 1 else b" | ".join(b"(%s)" % part for part in parts)
    shown = quoted(" | ".join(program.shown for program in line).encode())
    text = b"( \\builtin : %s; \\builtin set +xv; \\builtin eval %s ) &" % (shown, b'"$__wp_t"')
    start = b"( %s )" % text if is_service else text
    command = "\n".join(
        (
            f"\\builtin : started again: {quoted(first.shown.encode()).decode()}",
            READ_BACK,
            os.fsdecode(start),
            "__wp_t=",
            f"{{ (\\builtin exit {status});}}&&\\builtin :",
        )
    )
    return JobText(body, command)


def offered(line: Sequence[Program]) -> str | None:
    """The command line that is put on the shell's prompt, where Enter runs it, for a program that was in the
    foreground; None if its text cannot be typed. The program gets the shell's folder and environment, as it did before.
    """
    try:
        text = " | ".join(
            " ".join(quoted_if_needed(word, is_first=not place) for place, word in enumerate(program.argv))
            for program in line
        )
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and "!" not in text else None


def quoted_if_needed(word: bytes, *, is_first: bool) -> str:
    """`word`, quoted if the shell would read it as anything but itself. `is_first`: the word is the program's name, in
    whose place `A=B` and `%1` mean something else.
    """
    plain = rb"[A-Za-z0-9_+:./-]+" if is_first else rb"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*"
    return (word if re.fullmatch(plain, word) else quoted(word)).decode()


def _program(line: Sequence[Program], place: int, own: Mapping[str, str]) -> bytes:
    """The steps that a subshell takes to become the program."""
    program = line[place]
    piped = ({0} if place else set()) | ({1} if place < len(line) - 1 else set())
    streams = [one for one in program.streams if one.number not in piped and not one.terminal]
    steps = [
        b"{ head -c %d >/dev/null; }" % one.offset for one in streams if one.number == 0 and one.path and one.offset
    ]
    steps += [b"\\builtin cd -- " + quoted(os.fsencode(program.folder))] if program.folder else []
    words = [b"\\builtin exec", *([f"/{OWN_FOLDER}/setsid".encode()] if program.role == "service" else [])]
    steps.append(b" ".join([*words, b"env -i", *map(quoted, _environment(program, own)), *map(quoted, program.argv)]))
    return b" ".join([b"{", b" && ".join(steps) + b";", b"}", *map(_redirection, streams)])


def _environment(program: Program, own: Mapping[str, str]) -> list[bytes]:
    ours = [f"{name}={value}".encode() for name, value in own.items()]
    names = {entry.partition(b"=")[0] for entry in ours}
    kept = [entry for entry in program.environ if _NAME.match(entry) and entry.partition(b"=")[0] not in names]
    return [*kept, *ours]


def _redirection(stream: StandardStream) -> bytes:
    """The redirection of one standard stream. A file that was open for writing is opened to append."""
    path = quoted(os.fsencode(stream.path or "/dev/null"))
    return b"<" + path if stream.number == 0 else b"%d>>%s" % (stream.number, path)
