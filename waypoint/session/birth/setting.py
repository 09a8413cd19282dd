"""Making the setting of a session from a request, and checking whether a request may change it."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec

from waypoint.egress import published
from waypoint.egress.allowed import check as check_reachable
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.limits import checked
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.records import (
    Bind,
    Capture,
    ImageConfig,
    ProcessesLayer,
    Published,
    SessionLimits,
    Setting,
    pinned_id,
)
from waypoint.model.requests import ForkRequest, StartRequest
from waypoint.model.users import user_name
from waypoint.session.birth.users import change_of, find_user, image_user, in_base
from waypoint.upper import layout

AsCaller = Callable[[], AbstractContextManager[None]]
"""Gives the calling thread the file permissions of the caller during a `with` block (rights.as_caller)."""


class Below(NamedTuple):
    """What a request says about the files below the session. `folder_of`: SharedPlaces.folder_of. `name`: of a pinned
    base, or "". `image`: of the container image from which that base was made.
    """

    folder_of: Callable[[str], str]
    name: str = ""
    image: ImageConfig | None = None


def plan_setting(
    request: StartRequest,
    uid: int,
    origin: Setting | None,
    tree: str | None,
    as_caller: AsCaller,
    below: Below,
) -> Setting:
    """Return the setting of the new session. Each value is that of the request, else that of `origin`, else a default.

    `uid`: the caller. `origin`, `tree`: setting and upper tree of the capture from which the session starts. Another
    user than the one in `origin` gets neither its binds nor its shell: that user chose them. `request.base`
    may be a `Setting.base`.
    """
    image = origin.image if origin else below.image
    base = origin.base if origin else "/"
    if request.base is not None:
        base = start_plan.real_path(request.base, "start a session on", f"base {request.base!r}")
    folder = below.folder_of(base)
    if not os.path.isdir(folder) or not (request.base or base).startswith("/"):
        on = f"base {request.base or base!r}"
        raise UsageProblem("start a session on", on, "it is not a directory", "name an existing directory")
    if origin and request.base and base != origin.base:
        raise UsageProblem(
            "continue on",
            request.base if pinned_id(base) is None else f"base {pinned_id(base)}",
            f"the files of the branch belong to another base: {origin.base_text}",
            "start a new branch for another base",
        )
    if request.user:
        user = find_user(folder, request.user)
    elif origin:
        user = origin.user
    elif image is not None and uid == 0:
        user = image_user(folder, image.user or user_name(0))
    elif pinned_id(base) is None:
        user = find_user(folder, request.default_user or user_name(uid))
    else:  # the user of the machine, whose name is missing there, or another user's
        user = in_base(folder, find_user("/", request.default_user or str(uid)))
    if pinned_id(base) is not None:
        user = msgspec.structs.replace(user, shell=start_plan.usual_shell(folder, user.shell))
    own = origin if origin and not change_of(origin.user, user) else None
    with as_caller():
        binds = [start_plan.parse_bind(text) for text in request.binds] or (own.binds if own else [])
        for bind in binds:
            start_plan.check_bind(bind)
    return Setting(
        base=base,
        binds=binds,
        net=request.net or (origin.net if origin else "private"),
        user=user,
        cwd=request.cwd or _folder(request, origin, image) or user.home,
        env={**start_plan.taken_env(request.env), **start_plan.image_env(image)},
        command=request.command,
        shell=_shell(request, folder, own, tree),
        allow=request.allow or (origin.allow if origin else []),
        allow_net=_allow_net(request, origin),
        limits=limits_of(request, origin.limits if origin else SessionLimits()),
        auto=request.auto or (origin.auto if origin else False),
        idle_park=_age(request.idle_park, origin.idle_park if origin else 0.0),
        ttl=_age(request.ttl, origin.ttl if origin else 0.0),
        publish=_publish(request, origin),
        base_name=below.name if below.name and pinned_id(base) else origin.base_name if origin else "",
        image=image,
    )


def _folder(request: StartRequest, origin: Setting | None, image: ImageConfig | None) -> str | None:
    """Where the shell starts if the request does not demand a folder."""
    if image is not None:
        return image.working_dir or "/"
    return request.default_cwd or (origin.cwd if origin else None)


def _publish(request: StartRequest, origin: Setting | None) -> list[Published]:
    asked = [published.parse(text) for text in request.publish]
    published.check_distinct(asked)
    if (request.net or (origin.net if origin else "private")) != "host":
        return asked or (origin.publish if origin else [])
    if asked:
        check_own_network("host", request.publish[0])
    return []


def check_own_network(net: str, port: str) -> None:
    """Raise UsageProblem if a session with the network `net` has no ports of its own to publish."""
    if net == "host":
        said = "the session uses the machine's network (--net host), so its ports are the machine's"
        raise UsageProblem("publish", repr(port), said, "leave it out")


def _age(asked: float | None, own: float) -> float:
    return own if asked is None else asked


def _allow_net(request: StartRequest, origin: Setting | None) -> list[str]:
    check_reachable(request.allow_net)
    if request.allow_net and (request.net or (origin.net if origin else "private")) != "private":
        raise UsageProblem(
            "use",
            "--allow-net",
            "only a private network (--net private) can be restricted",
            "see 'waypoint shell --help'",
        )
    return request.allow_net or (origin.allow_net if origin else [])


def limits_of(request: StartRequest | ForkRequest, origin: SessionLimits) -> SessionLimits:
    """Return the limits of the request, those of `origin` where it has none."""
    return checked(
        SessionLimits(
            memory=request.memory or origin.memory,
            cpus=request.cpus or origin.cpus,
            pids=request.pids or origin.pids,
            disk=request.disk or origin.disk,
        )
    )


def _shell(request: StartRequest, base: str, origin: Setting | None, tree: str | None) -> str:
    """Return the path of the requested shell; "" for the user's login shell."""
    if request.shell is not None:
        roots = [base] if tree is None else [layout.upper_of(tree), base]
        found = start_plan.find_program(roots, request.shell)
        if found is None:
            next_step = "name a shell that the session has, by its path or its name"
            raise UsageProblem(
                "start a session with", f"shell {request.shell!r}", "there is no such program", next_step
            )
        return found
    if origin is not None:
        return origin.shell
    found = start_plan.find_program([base], request.default_shell) if request.default_shell else None
    return "" if found is None or start_plan.is_plain(found) else found


def check_live_setting(request: StartRequest, setting: Setting, limits: SessionLimits, as_caller: AsCaller) -> None:
    """Raise StateConflict if the request differs from the `setting` or the `limits` of the branch's live session.

    Blocks.
    """
    said = "it has a running session"
    if request.from_name is not None:
        next_step = f"stop it first: waypoint stop {request.branch}"
        raise StateConflict("start", f"branch {request.branch}", said, next_step)
    with as_caller():
        others = [*_other_limits(request, limits), *_other_settings(request, setting)]
    if others:
        next_step = (
            f"stop it: waypoint stop {request.branch}, or use another branch; 'waypoint shell {request.branch}' "
            f"without {' and '.join(others)} uses the running session"
        )
        if others == ["--publish"]:
            next_step = f"publish the port of the running session: waypoint port {request.branch} PORT"
        raise StateConflict(
            "start", f"branch {request.branch}", f"{said} with a different {' and '.join(others)}", next_step
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
    asked_ports = [published.parse(text) for text in request.publish]
    others += ["--publish"] if any(not _is_among(one, setting.publish) for one in asked_ports) else []
    others += ["--cwd"] if request.cwd not in (None, setting.cwd) else []
    others += ["--auto"] if request.auto and not setting.auto else []
    others += ["--idle-park"] if request.idle_park not in (None, setting.idle_park) else []
    others += ["--ttl"] if request.ttl not in (None, setting.ttl) else []
    program = start_plan.shell_argv(setting)[0][0]
    others += ["--shell"] if request.shell not in (None, program, os.path.basename(program)) else []
    return others + (["command"] if request.command not in ([], setting.command) else [])


def _is_among(asked: Published, found: list[Published]) -> bool:
    return any(asked in (one, msgspec.structs.replace(one, host=0)) for one in found)


def _places(binds: list[Bind]) -> set[tuple[str, str, bool]]:
    return {(bind.source, bind.target, bind.readonly) for bind in binds}


def check_restored_setting(branch: str, request: StartRequest, setting: Setting, origin: Capture) -> None:
    """Raise UsageProblem if the processes of `origin` cannot be restored with the requested `setting`: some settings
    cannot change, and with too little memory the kernel would kill the processes.
    """
    names, before = ("base", "binds", "net", "allow_net", "user", "shell", "allow"), _plain(origin.setting)
    changed = [name for name in names if getattr(_plain(setting), name) != getattr(before, name)]
    changed = [f"--{name.replace('binds', 'bind').replace('_', '-')}" for name in changed]
    changed += ["--cwd"] if request.cwd not in (None, origin.setting.cwd) else []
    changed += ["CMD"] if request.command else []
    if changed:
        said = f"its processes are restored, so {' and '.join(changed)} cannot be changed"
        next_step = "leave out these options, or start from a capture without processes (checkpoint --tier files)"
        raise UsageProblem("start", f"branch {branch}", said, next_step)
    processes, most = origin.layer(ProcessesLayer), setting.limits.memory
    if processes is not None and most is not None and processes.size_bytes > most:
        said = f"its processes need {processes.size_bytes >> 20} MiB of memory, but the limit is {most >> 20} MiB"
        raise UsageProblem(
            "start", f"branch {branch}", said, f"give --memory {2 * processes.size_bytes >> 20}M or more"
        )


def _plain(setting: Setting) -> Setting:
    """Return the setting without `Bind.as_user`, which no request can set."""
    binds = [msgspec.structs.replace(bind, as_user=False) for bind in setting.binds]
    return msgspec.structs.replace(setting, binds=binds)
