"""Giving a live session's shell a state that it had, or another shell of its kind."""

import asyncio
import os
from typing import NoReturn

from waypoint.linux import files
from waypoint.model.errors import CannotCapture, Failed, StateConflict, StoreDamaged
from waypoint.model.records import Capture
from waypoint.model.requests import ExecRequest
from waypoint.model.streams import Frame
from waypoint.session.exec.command_line import CommandLine
from waypoint.session.launch.spec import RUN_FOLDER
from waypoint.session.shell import script
from waypoint.session.shell.asked import MAX_BYTES, STATE_FILE, comes_to_prompt
from waypoint.session.shell.dump import Dump, parse
from waypoint.upper.contract import Pool

LIMIT_S = 30.0
_TOLD_BYTES = 1 << 16


def read_state(pool: Pool, capture: Capture) -> Dump:
    """The state that a capture has kept. Raises CannotCapture if it has none, StoreDamaged."""
    layer, on = capture.layers.shell, capture.id[:12]
    if layer is None:
        said = "it has no state of the shell: that was busy, or is none that Waypoint knows"
        raise CannotCapture("restore the shell of", on, said, "restore all of it, or another checkpoint")
    try:
        folder = os.open(f"{pool.path(capture.layers.files.tree)}/m0/upper", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = files.open_beneath(folder, f"{RUN_FOLDER}/{STATE_FILE}", os.O_RDONLY | os.O_NONBLOCK)
        finally:
            os.close(folder)
        with open(fd, "rb") as file:
            return parse(file.read(MAX_BYTES), layer.kind)
    except (OSError, ValueError) as error:
        raise StoreDamaged("read", f"the shell's state in {on}", str(error), "restore another capture") from error


async def check_shell(line: CommandLine, branch: str, then: Dump) -> None:
    """Raises StateConflict if the shell cannot be asked now, CannotCapture if it is of another kind than in `then`."""
    if not await comes_to_prompt(line) or line.watch.shell is None:
        refuse(branch, line.watch.obstacle(line.watch.look()))
    if line.watch.shell.kind != then.kind:
        said = f"its shell is a {line.watch.shell.kind}, the state is that of a {then.kind}"
        raise CannotCapture("restore the shell on", f"branch {branch}", said, "restore all of it")


def refuse(branch: str, said: str) -> NoReturn:
    next_step = "let the shell come to its prompt (attach, or exec)"
    raise StateConflict("restore the shell on", f"branch {branch}", said, next_step)


async def put_back(line: CommandLine, now: Dump, then: Dump, name: str) -> list[str]:
    """Bring the shell from the state `now`, which it has, to `then`; in words what stayed as it was.

    `name`: of what is restored, for those who watch. Raises Failed.
    """
    made = script.compose(now, then, f"waypoint restore {name} --only shell")
    folder = line.desk.folder
    try:
        folder.write("back", made.body)
        # As on a terminal: a plain exec would set some variables for its time, and find them changed.
        request = ExecRequest(text=made.command, tty=True, timeout_s=LIMIT_S)
        ended = await line.execute(request, _Nobody(), _Nobody())
        told = script.read_told(folder.read("told", _TOLD_BYTES).decode(errors="backslashreplace"))
    except OSError as error:
        raise _failed(error.strerror or str(error)) from error
    finally:
        folder.remove("back")
        folder.remove("told")
    if told is None:
        raise _failed(str(ended["said"]) or "the shell broke off in the midst of it")
    return made.stays + told


def _failed(said: str) -> Failed:
    return Failed("restore", "the shell", said, "'waypoint undo' brings back what was before")


class _Nobody:
    """The client of an exec that nobody watches."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None

    async def output(self, data: bytes | memoryview) -> None: ...

    async def errors(self, data: bytes | memoryview) -> None: ...

    async def note(self, facts: dict[str, object]) -> None: ...
