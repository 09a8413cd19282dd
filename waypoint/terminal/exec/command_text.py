"""The text of a command that has a folder or variables of its own."""

import shlex

from waypoint.model.requests import ExecRequest
from waypoint.terminal.exec.command_record import ExecRecord
from waypoint.terminal.hooks.run_folder import RunFolder

REFUSED = 125


def text_of(request: ExecRequest) -> str:
    """The shell text for `request`: its own text or, with `cwd` or `env`, a subshell that sets them before.

    bash and zsh parse the whole subshell before they run any of it. If the folder cannot be entered, the shell says so,
    the status is 125, and the command's file, which the hooks have read, is emptied: `is_refused`.
    """
    steps = [f"CDPATH= \\builtin cd -- {shlex.quote(request.cwd)}"] if request.cwd is not None else []
    steps += [f"\\builtin export {name}={shlex.quote(value)}" for name, value in request.env.items()]
    if not steps:
        return request.text
    emptied = '\\builtin : 2>/dev/null >|"$__wp_d/cmd.$__wp_n"'  # variables of the hooks
    return f"({' && '.join(steps)} || {{ {emptied}; \\builtin exit {REFUSED}; }}\n{request.text}\n)"


def is_refused(folder: RunFolder, record: ExecRecord) -> bool:
    """Whether the text of the command has not begun, because its folder or its variables could not be had."""
    try:
        return record.text != "" and folder.size(f"cmd.{record.id}") == 0
    except OSError:
        return False
