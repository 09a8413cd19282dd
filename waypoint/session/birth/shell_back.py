"""Giving the new shell of a session the state that the shell had in the capture from which the session starts."""

import asyncio
import functools

from waypoint.capture.layers.shell import BEFORE_FILE, MAX_BYTES, STATE_FILE, KeptShell, history_in
from waypoint.launch.ground import start_plan
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture, Setting, ShellLayer
from waypoint.session.birth.users import change_of
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder, apart
from waypoint.terminal.shell.asked import ask_state
from waypoint.terminal.shell.dump import ShellDump, ShellKind, parse
from waypoint.terminal.shell.putting_back import parse_state, put_back

_TRIES = 3  # on a busy machine a new shell starts more slowly than one question waits
_HAS_NONE = "the capture has no state of a shell"


async def restore_shell(resources: Resources, live: LiveSession, origin: Capture, *, stay: bool) -> list[Degradation]:
    """Restore the shell's state from the capture `origin` in the new shell of `live`. `stay`: keep the shell's working
    folder.

    Variables that the start of the session sets (such as those of `--env`) keep their new values. Returns what could
    not be restored: single values, or the whole state, for example if it is another user's, because it is text that the
    shell would execute.
    """
    setting = live.record.row.setting
    if changed := change_of(origin.setting.user, setting.user):
        return _of_another(setting, origin.setting, changed)
    if not start_plan.has_hooks(start_plan.shell_of(setting)):
        return []
    if origin.layer(ShellLayer) is None:
        return [_new_shell(_HAS_NONE)] if start_plan.has_hooks(start_plan.shell_of(origin.setting)) else []
    try:
        kept = await asyncio.to_thread(_read, resources, origin)
        then = await asyncio.to_thread(parse_state, origin, kept)
        now = await _present(live.shell)
        # Keep the state in a file, in case the session is captured before the shell's first prompt.
        if live.shell.watch.shell is None:
            await apart(live.shell.desk.folder, functools.partial(_leave, kept=kept))
        if isinstance(now, str) or now.kind != then.kind:
            why = now if isinstance(now, str) else f"the shell is {now.kind}, but the state is of {then.kind}"
            return [_new_shell(why)]
        _adapt(now, then, _given_anew(setting, origin.setting), stay=stay)
        stays = await put_back(
            live.shell, live.branch, now, then, f"variables and functions restored from {origin.id[:12]}"
        )
    except (WaypointError, OSError, ValueError) as error:
        return [_new_shell(error.said if isinstance(error, WaypointError) else str(error))]
    return [degradation("shell-value-not-restored", detail=said) for said in stays]


def _new_shell(why: str) -> Degradation:
    return degradation("shell-not-restored", detail=why)


def _of_another(setting: Setting, before: Setting, changed: str) -> list[Degradation]:
    kept = {(bind.source, bind.target) for bind in setting.binds}
    gone = [bind for bind in before.binds if (bind.source, bind.target) not in kept]
    binds = (degradation("bind-missing", f"{bind.source} is not bound at {bind.target}", changed) for bind in gone)
    return [_new_shell(changed), *binds]


def _read(resources: Resources, origin: Capture) -> KeptShell:
    with resources.captures.hold(origin) as held:
        return held.shell_state()


def _leave(folder: RunFolder, kept: KeptShell) -> None:
    name = history_in(kept.data)
    if name and kept.history is not None:
        folder.write(name, kept.history)
    folder.write(BEFORE_FILE, kept.data)


async def _present(line: CommandLine) -> ShellDump | str:
    """Return the state of the new shell, or a text with the reason why there is none."""
    for _ in range(_TRIES):
        asked = await ask_state(line)
        if asked is not None:
            break
    else:
        return line.watch.obstacle(line.watch.look()) if line.watch.shell is None else "it does not answer"
    return await apart(line.desk.folder, functools.partial(_parse, kind=asked.layer.kind))


def _parse(folder: RunFolder, kind: ShellKind) -> ShellDump:
    data = folder.read(STATE_FILE, MAX_BYTES)
    name = history_in(data)
    return parse(data, kind, folder.read(name, MAX_BYTES) if name else None)


def _given_anew(setting: Setting, before: Setting) -> set[bytes]:
    """Return the names of the session variables that differ between the settings."""
    ours, theirs = (start_plan.session_env(one, "", {}) for one in (setting, before))
    return {name.encode() for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}


def _adapt(now: ShellDump, then: ShellDump, given: set[bytes], *, stay: bool) -> None:
    """Copy the parts of the state that must not change from `now` to `then`."""
    for name in given:
        then.variables.pop(name, None)
        if name in now.variables:
            then.variables[name] = now.variables[name]
    if stay:
        then.folders = now.folders
