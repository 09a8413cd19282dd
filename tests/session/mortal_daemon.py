"""The part of the daemon that drives one shell, as a program that tests can kill. It prints the id, the output and the
end of an exec.

Arguments: the stage's folder, the id of an exec to resume (or `-`), the offset, the text. Environment: MASTER, the
descriptor of the terminal's master, and SHELL_PID.
"""

import asyncio
import contextlib
import os
import sys

from shellwrap.ring import Ring
from tests.session.stage import NO_SPARE, NONCE
from waypoint.linux.tasks import procfs
from waypoint.model.requests import ExecRequest
from waypoint.model.streams import Frame
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder
from waypoint.terminal.terminal import Terminal


class Pipe:
    """The standard output as an Outlet, which waits until all bytes are written; and an Inlet without any input."""

    async def receive(self) -> Frame | None:
        await asyncio.Event().wait()
        return None

    async def output(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]
            await asyncio.sleep(0)

    async def errors(self, data: bytes | memoryview) -> None:
        await self.output(data)

    async def note(self, facts: dict[str, object]) -> None:
        os.write(1, f"{facts['exec']}\n".encode())


async def main(folder: str, ident: str, offset: int, text: str) -> None:
    pid = int(os.environ["SHELL_PID"])
    terminal = Terminal(int(os.environ["MASTER"]), Ring.open(f"{folder}/ring"))
    run_dir = os.open(f"{folder}/run", os.O_RDONLY)

    def processes() -> list[int]:
        with contextlib.suppress(ProcessLookupError):
            return [pid, *procfs.children(pid)]
        return []

    ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    line = CommandLine(terminal, RunFolder(run_dir, NO_SPARE), NONCE, f"{folder}/exec.json", processes, ended)
    line.adopt()
    terminal.start()
    pipe = Pipe()
    if ident == "-":
        request = ExecRequest(text=text)
    else:
        os.write(1, f"{ident}\n".encode())
        request = ExecRequest(resume=ident, offset=offset)
    end = await line.execute(request, pipe, pipe)
    await line.wait_idle()
    os.write(1, f"\nEND {end['exit']}".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
