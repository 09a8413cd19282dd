"""The shell text that starts a captured program again, from its entry in the manifest.

Every word of the program is quoted, so the shell expands nothing. The program gets its captured environment, not the
shell's, except for the name of the branch.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from waypoint.model.paths import OWN_FOLDER
from waypoint.processes.respawn.manifest import Program, StandardStream
from waypoint.terminal.shell.words import READ_BACK, quoted

_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_.%()-]*=")
# Programs that only display something, so they may be started again without the user's consent. Programs that run other
# programs (man, watch) are not among them; less runs others if one of its words begins with `+`.
_SAFE = frozenset({b"tail", b"less", b"more", b"top", b"htop", b"journalctl"})


class JobText(NamedTuple):
    """`body`: the shell text that starts the programs; the shell reads it from the file `back` in its run folder.
    `command`: the command line that evaluates the body. The body contains the environment of the programs, with its
    secrets, so a shell that traces (`set -x`) must print only the command line.
    """

    body: bytes
    command: str


def job(line: Sequence[Program], branch: str, status: int) -> JobText:
    """Return the text that starts a pipeline of programs as a background job of the shell, or a single service, which
    does not become a job of the shell. `status`: the value of `$?` afterwards.
    """
    first = line[0]
    is_service = first.role == "service"
    parts = [_program(line, place, branch) for place in range(len(line))]
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
    """Return the command line of programs that were in the foreground. It is typed at the shell's prompt, where the
    user can run it with Enter. None if the line contains characters that cannot be typed. The programs get the shell's
    folder and environment.
    """
    try:
        text = " | ".join(
            " ".join(quoted_if_needed(word, is_first=not place) for place, word in enumerate(program.argv))
            for program in line
        )
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and "!" not in text else None


def may_run_unasked(line: Sequence[Program]) -> bool:
    words = (word for program in line for word in program.argv[1:])
    return all(program.argv[0] in _SAFE for program in line) and not any(word.startswith(b"+") for word in words)


def quoted_if_needed(word: bytes, *, is_first: bool) -> str:
    """Return `word`, quoted if it contains characters that may have a meaning to the shell. `is_first`: the word is the
    program's name; at this position `A=B` would be an assignment and `%1` a job.
    """
    plain = rb"[A-Za-z0-9_+:./-]+" if is_first else rb"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*"
    return (word if re.fullmatch(plain, word) else quoted(word)).decode()


def _program(line: Sequence[Program], place: int, branch: str) -> bytes:
    """Return the commands by which a subshell replaces itself by the program."""
    program = line[place]
    piped = ({0} if place else set()) | ({1} if place < len(line) - 1 else set())
    streams = [one for one in program.streams if one.number not in piped and not one.terminal]
    steps = [
        b"{ head -c %d >/dev/null; }" % one.offset for one in streams if one.number == 0 and one.path and one.offset
    ]
    steps += [b"\\builtin cd -- " + quoted(os.fsencode(program.folder))] if program.folder else []
    words = [b"\\builtin exec", *([f"/{OWN_FOLDER}/setsid".encode()] if program.role == "service" else [])]
    steps.append(
        b" ".join([*words, b"env -i", *map(quoted, _environment(program, branch)), *map(quoted, program.argv)])
    )
    return b" ".join([b"{", b" && ".join(steps) + b";", b"}", *map(_redirection, streams)])


def _environment(program: Program, branch: str) -> list[bytes]:
    ours = b"WAYPOINT_BRANCH="
    kept = [entry for entry in program.environ if _NAME.match(entry) and not entry.startswith(ours)]
    return [*kept, ours + branch.encode()]


def _redirection(stream: StandardStream) -> bytes:
    """Return the redirection of one standard stream. A file that was open for writing is opened for appending."""
    path = quoted(os.fsencode(stream.path or "/dev/null"))
    return b"<" + path if stream.number == 0 else b"%d>>%s" % (stream.number, path)
