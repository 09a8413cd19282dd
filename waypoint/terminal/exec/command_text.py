"""The shell text of a command with its own working directory or variables."""

import shlex

from waypoint.model.requests import ExecRequest
from waypoint.terminal.exec.command_record import ExecRecord
from waypoint.terminal.hooks.run_folder import RunFolder

REFUSED = 125


def text_of(request: ExecRequest) -> str:
    """Return the shell text for `request`. With `cwd` or `env`, this is a subshell that sets them first.

    bash and zsh parse the whole subshell before they run any of it. If `cd` or `export` fails, the shell prints the
    reason, the status is 125, and the subshell empties the command's file, which the hooks have already read (see
    `is_refused`).
    """
    steps = [f"CDPATH= \\builtin cd -- {shlex.quote(request.cwd)}"] if request.cwd is not None else []
    steps += [f"\\builtin export {name}={shlex.quote(value)}" for name, value in request.env.items()]
    if not steps:
        return request.text
    emptied = '\\builtin : 2>/dev/null >|"$__wp_d/cmd.$__wp_n"'  # the hooks set these variables
    return f"({' && '.join(steps)} || {{ {emptied}; \\builtin exit {REFUSED}; }}\n{request.text}\n)"


def is_refused(folder: RunFolder, record: ExecRecord) -> bool:
    """True if the command did not run because its working directory or variables could not be set."""
    try:
        return record.text != "" and folder.size(f"cmd.{record.id}") == 0
    except OSError:
        return False
