"""From a request to the setting of a session."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from waypoint.egress.allowed import check as check_reachable
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.limits import checked
from waypoint.model.errors import UsageProblem
from waypoint.model.records import SessionLimits, Setting
from waypoint.model.requests import StartRequest
from waypoint.session.birth.users import change_of, find_user, user_name
from waypoint.upper import layout

Looking = Callable[[], AbstractContextManager[None]]


def plan_setting(
    request: StartRequest, uid: int, origin: Setting | None, tree: str | None, looking: Looking
) -> Setting:
    """The setting of the new session: each value is the one in the request, else the one in `origin`, else a default.

    `uid`: the user who asks. `origin`, `tree`: setting and upper tree of the capture that the session goes on from.
    `looking`: what is bound is looked at in this context. Another user than the one in `origin` gets neither its binds
    nor its shell, which that one has chosen: what is bound is bound with the rights of whose session it is. Raises
    UsageProblem.
    """
    base = origin.base if origin else "/"
    if request.base is not None:
        base = start_plan.real_path(request.base, "start a session on", f"base {request.base!r}")
    if not os.path.isdir(base) or not (request.base or base).startswith("/"):
        raise UsageProblem("start a session on", f"base {request.base!r}", "it is not a directory", "give --base DIR")
    if origin and request.base and base != origin.base:
        raise UsageProblem(
            "go on with another base",
            base,
            f"the branch was made on {origin.base}",
            "start a new branch for another base",
        )
    if request.user:
        user = find_user(base, request.user)
    else:
        user = origin.user if origin else find_user(base, request.default_user or user_name(uid))
    own = origin if origin and not change_of(origin.user, user) else None
    with looking():
        binds = [start_plan.parse_bind(text) for text in request.binds] or (own.binds if own else [])
        for bind in binds:
            start_plan.check_bind(bind)
    return Setting(
        base=base,
        binds=binds,
        net=request.net or (origin.net if origin else "private"),
        user=user,
        cwd=request.cwd or request.default_cwd or (origin.cwd if origin else user.home),
        env=start_plan.taken_env(request.env),
        command=request.command,
        shell=_shell(request, base, own, tree),
        allow=request.allow or (origin.allow if origin else []),
        allow_net=_allow_net(request, origin),
        limits=_limits(request, origin.limits if origin else SessionLimits()),
    )


def _allow_net(request: StartRequest, origin: Setting | None) -> list[str]:
    """Raises UsageProblem for what is neither a name nor a network."""
    check_reachable(request.allow_net)
    if request.allow_net and (request.net or (origin.net if origin else "private")) != "private":
        raise UsageProblem("use", "--allow-net", "only a private network can be narrowed", "see --help")
    return request.allow_net or (origin.allow_net if origin else [])


def _limits(request: StartRequest, origin: SessionLimits) -> SessionLimits:
    """Raises UsageProblem if a session could not live with them."""
    return checked(
        SessionLimits(
            memory=request.memory or origin.memory,
            cpus=request.cpus or origin.cpus,
            pids=request.pids or origin.pids,
            disk=request.disk or origin.disk,
        )
    )


def _shell(request: StartRequest, base: str, origin: Setting | None, tree: str | None) -> str:
    """The path of the shell that is asked for; empty: that of the user. Raises UsageProblem if there is no such program
    in the session's files.
    """
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
