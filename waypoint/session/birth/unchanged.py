"""What a request to start a session cannot change: anything of a live session, and of processes that come back, what
they were captured with.
"""

import os

import msgspec

from waypoint.egress.published import wanted
from waypoint.launch.ground import start_plan
from waypoint.linux.storage.access import Looking
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.records import Bind, Capture, SessionLimits, Setting
from waypoint.model.requests import StartRequest

_FIXED = frozenset(("--base", "--bind", "--net", "--allow", "--cwd", "--shell", "command"))
"""What processes that come back cannot have otherwise (`_check_unchanged`)."""


def check_live(request: StartRequest, setting: Setting, limits: SessionLimits, looking: Looking) -> None:
    """Raise StateConflict if the request asks for something that the branch's live session does not have.

    `setting`, `limits`: of that session; the limits are those in force. `looking`: as for `plan_setting`. Raises
    UsageProblem for a bind that makes no sense. Looks at files.
    """
    said = "it has a live session"
    if request.from_name is not None:
        raise StateConflict("start", f"branch {request.branch}", said, beside(request.branch, request.from_name))
    with looking():
        others = [*_other_limits(request, limits), *_other_settings(request, setting)]
    if others:
        said = f"{said}, with another {' and '.join(others)}"
        raise StateConflict("start", f"branch {request.branch}", said, _way_to(request, setting, others))


def beside(branch: str, from_name: str) -> str:
    """The next step for whoever wants `from_name` on a branch that exists."""
    if branch == from_name:
        return f"leave --from out: waypoint shell {branch}"
    return f"choose another name, or bring it back on this branch: waypoint restore {from_name} -b {branch}"


def _way_to(request: StartRequest, setting: Setting, others: list[str]) -> str:
    """The next step for whoever wants `others` of a live session: it is parked, and taken up with them, with its
    processes unless these could not come back so.
    """
    fixed = [one for one in others if one in _FIXED and not (one == "--net" and request.net == setting.net)]
    park = f"waypoint checkpoint NAME -b {request.branch} --park (a stop would end its programs)"
    if fixed and request.tier is None:
        return (
            "leave that out to go on with it; or park it, then ask again with --tier respawn, which starts its "
            f"programs again: {park}"
        )
    return f"leave that out to go on with it; or park it, then ask again: {park}"


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
    others += ["--tier"] if request.tier is not None else []
    is_whole = request.net is not None and not request.allow_net and bool(setting.allow_net)
    others += ["--net"] if is_whole or request.net not in (None, setting.net) else []
    others += ["--allow-net"] if request.allow_net and {*request.allow_net} != {*setting.allow_net} else []
    others += ["--publish"] if wanted(request.publish) not in (None, setting.publish) else []
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
    names, before = ("base", "binds", "net", "user", "shell", "allow"), _plain(origin.setting)
    changed = [name for name in names if getattr(_plain(setting), name) != getattr(before, name)]
    changed += ["cwd"] if request.cwd not in (None, origin.setting.cwd) else []
    changed += ["command"] if request.command else []
    if changed:
        said = f"it comes back with its processes, whose {' and '.join(changed)} cannot be changed"
        next_step = "leave that out, or have its programs started again (--tier respawn), or not at all (--tier files)"
        if changed == ["net"] and request.net is None:
            said = f"it comes back with its processes, whose network ({origin.setting.net}) it takes only if told so"
            next_step = "tell it so: --net from; or have its programs started again: --tier respawn"
        raise UsageProblem("start", f"branch {branch}", said, next_step)


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
