"""What a request to start a session cannot change: anything of a live session, and of processes that come back, what
they were captured with.
"""

import os

import msgspec

from waypoint.launch.ground import start_plan
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.records import Bind, Capture, SessionLimits, Setting
from waypoint.model.requests import StartRequest
from waypoint.session.birth.setting import Looking


def check_live(request: StartRequest, setting: Setting, limits: SessionLimits, looking: Looking) -> None:
    """Raise StateConflict if the request asks for something that the branch's live session does not have.

    `setting`, `limits`: of that session; the limits are those in force. `looking`: as for `plan_setting`. Raises
    UsageProblem for a bind that makes no sense. Looks at files.
    """
    said = "it has a live session"
    if request.from_name is not None:
        next_step = f"stop it first: waypoint stop {request.branch}"
        raise StateConflict("start", f"branch {request.branch}", said, next_step)
    with looking():
        others = [*_other_limits(request, limits), *_other_settings(request, setting)]
    if others:
        next_step = f"leave that out to go on with it, or stop it first: waypoint stop {request.branch}"
        raise StateConflict(
            "start", f"branch {request.branch}", f"{said}, with another {' and '.join(others)}", next_step
        )


def _other_limits(request: StartRequest, limits: SessionLimits) -> list[str]:
    asked = ((name, getattr(request, name)) for name in limits.__struct_fields__)
    return [f"--{name}" for name, value in asked if value is not None and value != getattr(limits, name)]


def _other_settings(request: StartRequest, setting: Setting) -> list[str]:
    others = []
    if request.base is not None and start_plan.real_path(request.base, "look at", request.base) != setting.base:
        others.append("--base")
    if request.binds:
        asked = [start_plan.parse_bind(text) for text in request.binds]
        if _places(asked) != _places(setting.binds):
            others.append("--bind")
    others += ["--net"] if request.net not in (None, setting.net) else []
    others += ["--allow-net"] if request.allow_net and {*request.allow_net} != {*setting.allow_net} else []
    others += ["--allow"] if request.allow and {*request.allow} != {*setting.allow} else []
    others += ["--cwd"] if request.cwd not in (None, setting.cwd) else []
    program = start_plan.shell_argv(setting)[0][0]
    others += ["--shell"] if request.shell not in (None, program, os.path.basename(program)) else []
    return others + (["command"] if request.command not in ([], setting.command) else [])


def _places(binds: list[Bind]) -> set[tuple[str, str, bool]]:
    return {(bind.source, bind.target, bind.readonly) for bind in binds}


def check_processes(branch: str, request: StartRequest, setting: Setting, origin: Capture) -> None:
    """Raise UsageProblem if the processes of `origin` cannot come back on the branch with `setting`, for which the
    request asks.
    """
    _check_unchanged(branch, request, setting, origin)
    _check_memory(branch, setting, origin)


def _check_unchanged(branch: str, request: StartRequest, setting: Setting, origin: Capture) -> None:
    """Raise UsageProblem if the request changes a setting of processes that come back as they were captured."""
    names, before = ("base", "binds", "net", "allow_net", "user", "shell", "allow"), _plain(origin.setting)
    changed = [name for name in names if getattr(_plain(setting), name) != getattr(before, name)]
    changed += ["cwd"] if request.cwd not in (None, origin.setting.cwd) else []
    changed += ["command"] if request.command else []
    if changed:
        said = f"it comes back with its processes, whose {' and '.join(changed)} cannot be changed"
        raise UsageProblem("start", f"branch {branch}", said, "leave that out, or start from a capture of tier files")


def _check_memory(branch: str, setting: Setting, origin: Capture) -> None:
    """Raise UsageProblem if the processes that come back need more memory than the session may have: the kernel would
    kill them.
    """
    processes, most = origin.layers.processes, setting.limits.memory
    if processes is not None and most is not None and processes.size_bytes > most:
        said = f"its processes need {processes.size_bytes >> 20} MiB of memory, and may have {most >> 20} MiB"
        raise UsageProblem(
            "start", f"branch {branch}", said, f"give --memory {2 * processes.size_bytes >> 20}M or more"
        )


def _plain(setting: Setting) -> Setting:
    """The setting as it can be asked for: nobody asks for a bind with less than their rights."""
    binds = [msgspec.structs.replace(bind, as_user=False) for bind in setting.binds]
    return msgspec.structs.replace(setting, binds=binds)
