"""A session's own hooks: programs in its folders /etc/waypoint/hooks/pre-checkpoint.d, post-checkpoint.d and
post-restore.d. With them a database can flush its data before a checkpoint, or a client can reconnect after a restore.

The hooks of one moment run one after the other, in the order of their names, as the session's user, within HOOKS_S
seconds together. A failing hook is reported; the operation continues. While hooks run, requests of the session's
processes that move its branch are refused (inside/serving.py): a hook that asks for a capture would run itself again.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import stat
from typing import Literal

from waypoint.linux.storage import beneath
from waypoint.linux.tasks import procfs
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import as_text
from waypoint.model.requests import RunRequest
from waypoint.model.stages import Stage
from waypoint.model.streams import Frame
from waypoint.session.live.session import LiveSession

HOOKS_S = 10.0
_END_S = 1.0  # how long a killed hook may take to end: another process of the session may trace it
_FOLDER = "etc/waypoint/hooks"
_MOST_LOOKED_AT = 1024
_MOST = 64  # hooks of one moment; further hooks are reported and not run
_MOST_SAID_BYTES = 200  # how much of a failed hook's output the report quotes

Moment = Literal["pre-checkpoint", "post-checkpoint", "post-restore"]


async def run_hooks(live: LiveSession, moment: Moment) -> list[Degradation]:
    """Run the session's hooks of the moment. Returns what failed; raises nothing."""
    try:
        names = await asyncio.to_thread(_find, live.record.init_pid, moment)
    except (FileNotFoundError, ProcessLookupError):  # the session has just ended
        return []
    except OSError as error:
        return [degradation("hooks-not-run", moment, f"their folder could not be read: {error.strerror}")]
    failed: list[Degradation] = []
    if len(names) > _MOST:
        failed.append(degradation("hooks-not-run", moment, f"the last {len(names) - _MOST} of them are too many"))
    until = asyncio.get_running_loop().time() + HOOKS_S
    live.hooks_running += 1
    try:
        for name in names[:_MOST]:
            said = await _run(live, f"/{_FOLDER}/{moment}.d/{name}", moment, until)
            failed += [degradation("hook-failed", f"{moment}.d/{name}", said)] if said else []
    finally:
        live.hooks_running -= 1
    return failed


async def before_capture(live: LiveSession) -> list[Degradation]:
    return await run_hooks(live, "pre-checkpoint")


def _find(init: int, moment: Moment) -> list[str]:
    """The names of the hooks, sorted; none if their folder is missing or no folder. Raises OSError."""
    with contextlib.ExitStack() as held:
        root = procfs.open_root(init)
        held.callback(os.close, root)
        try:
            folder = held.enter_context(beneath.opened(root, f"{_FOLDER}/{moment}.d", os.O_RDONLY | os.O_DIRECTORY))
        except (FileNotFoundError, NotADirectoryError):
            return []
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, _MOST_LOOKED_AT + 1))
        if len(names) > _MOST_LOOKED_AT:
            raise OSError(errno.E2BIG, f"there are more than {_MOST_LOOKED_AT} files")
        return [name for name in names if _is_program(os.stat(name, dir_fd=folder, follow_symlinks=False))]
    return []


def _is_program(found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111))


async def _run(live: LiveSession, path: str, moment: Moment, until: float) -> str:
    """Run one hook. Returns how it failed; "" if it worked."""
    left_s = until - asyncio.get_running_loop().time()
    if left_s <= 0:
        return f"was not run: the hooks before it took {HOOKS_S:g} s"
    if as_text(path) != path:
        return "was not run: its name is not UTF-8"
    output = _Output()
    try:
        with stage(Stage.HOOK, path.removeprefix(f"/{_FOLDER}/")):
            ended = await _run_until(until, live, path, moment, output)
    except OSError as error:  # a run writes its exit status into a file; none of its folders could be opened
        return f"was not run: {error.strerror or error}"
    if ended is None:
        return f"was killed: it took longer than {left_s:.1f} s"
    if ended.get("exit") == 0:
        return ""
    said = str(ended.get("said") or output.text())
    return f"ended with {ended.get('exit')}{': ' if said else ''}{said}"


async def _run_until(
    until: float, live: LiveSession, path: str, moment: Moment, output: "_Output"
) -> dict[str, object] | None:
    """Run one hook, and return how it ended; None if it was killed at the time `until` of the event loop."""
    bound, left_s = _Bound(until), until - asyncio.get_running_loop().time()
    request = RunRequest(argv=[path], env={"WAYPOINT_HOOK": moment})
    running = asyncio.ensure_future(live.run(request, bound, output, left_s))
    try:
        if not (await asyncio.wait([running], timeout=left_s + _END_S))[0]:
            return None
        return None if bound.is_over else running.result()
    finally:
        running.cancel()


class _Bound:
    """The input of a client that kills its process at the time `until` of the event loop."""

    def __init__(self, until: float) -> None:
        self._until = until
        self.is_over = False

    async def receive(self) -> Frame | None:
        if self.is_over:
            await asyncio.Event().wait()  # until the process has ended
        await asyncio.sleep(self._until - asyncio.get_running_loop().time())
        self.is_over = True
        return Frame("k", b"KILL")


class _Output:
    """Keeps the beginning of the process's output."""

    def __init__(self) -> None:
        self._kept = b""

    async def output(self, data: bytes | memoryview) -> None:
        self._kept += bytes(data[: _MOST_SAID_BYTES - len(self._kept)]) if len(self._kept) < _MOST_SAID_BYTES else b""

    errors = output

    async def note(self, facts: dict[str, object]) -> None:
        pass

    def text(self) -> str:
        return " ".join(self._kept.decode(errors="replace").split())
