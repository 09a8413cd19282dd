"""The text of a command that has a folder or variables of its own."""

import shlex

from waypoint.model.requests import ExecRequest


def text_of(request: ExecRequest) -> str:
    """The shell text for `request`: its own text or, with `cwd` or `env`, a subshell that sets them before.

    bash and zsh parse the whole subshell before they run any of it. If the folder cannot be entered, the shell says so,
    and the status is 125.
    """
    steps = [f"CDPATH= \\builtin cd -- {shlex.quote(request.cwd)}"] if request.cwd is not None else []
    steps += [f"\\builtin export {name}={shlex.quote(value)}" for name, value in request.env.items()]
    if not steps:
        return request.text
    return f"({' && '.join(steps)} || \\builtin exit 125\n{request.text}\n)"
