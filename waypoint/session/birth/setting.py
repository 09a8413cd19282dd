"""From a request to the setting of a session."""

import os

from waypoint.egress.allowed import check as check_reachable
from waypoint.egress.published import wanted
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.limits import checked
from waypoint.linux.storage.access import Looking
from waypoint.model.errors import UsageProblem
from waypoint.model.records import SessionLimits, Setting
from waypoint.model.requests import Net, StartRequest
from waypoint.session.birth.users import change_of, find_user, user_name
from waypoint.upper import layout


def plan_setting(
    request: StartRequest, uid: int, origin: Setting | None, tree: str | None, looking: Looking
) -> Setting:
    """The setting of the new session: each value is the one in the request, else the one in `origin`, else a default.

    `uid`: the user who asks. `origin`, `tree`: setting and upper tree of the capture that the session goes on from.
    `looking`: what is bound, and the shell, are looked at in this context. Another user than the one in `origin` gets
    neither its binds nor its shell, which that one has chosen: what is bound is bound with the rights of whose session
    it is. Raises UsageProblem.
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
    net, allow_net = _network(request, origin)
    return Setting(
        base=base,
        binds=binds,
        net=net,
        user=user,
        cwd=request.cwd or request.default_cwd or (origin.cwd if origin else user.home),
        env=start_plan.taken_env(request.env),
        command=request.command,
        shell=_shell(request, base, own, tree, looking),
        allow=request.allow or (origin.allow if origin else []),
        allow_net=allow_net,
        publish=_publish(request, origin, net),
        limits=_limits(request, origin.limits if origin else SessionLimits()),
    )


def _network(request: StartRequest, origin: Setting | None) -> tuple[Net, list[str]]:
    """The network, and all that may be reached there. A branch keeps its own; one that is made from another's capture
    has the capture's if the request says so (`from`), else the usual one: but where the capture had that, too, no more
    can be reached than there, as processes of it may be held by that. Raises UsageProblem.
    """
    if request.net == "from" and request.from_name is None:
        raise UsageProblem("use", "--net from", "it is the network of what --from names", "give --from NAME too")
    own = origin if request.from_name is None or request.net == "from" else None
    asked = None if request.net == "from" else request.net
    net = asked or (own.net if own else "private")
    check_reachable(request.allow_net)
    if request.allow_net and net != "private":
        raise UsageProblem("use", "--allow-net", "only a private network can be narrowed", "see --help")
    kept = origin.allow_net if origin is not None and asked is None and origin.net == net else []
    return net, request.allow_net or kept


def other_network(request: StartRequest, setting: Setting, origin: Setting) -> list[str]:
    """In words, that a session with `setting`, which was made from another branch's capture, is on another network than
    that had, which nobody has asked for; empty if that is not so.
    """
    same = (setting.net, {*setting.allow_net}) == (origin.net, {*origin.allow_net})
    if same or request.from_name is None or request.net is not None:
        return []
    own, others = _shown_network(setting), _shown_network(origin)
    return [f"network: {own}, which is another than {request.from_name} had ({others}); to have that: --net from"]


def _shown_network(setting: Setting) -> str:
    return f"{setting.net}, only to {', '.join(setting.allow_net)}" if setting.allow_net else setting.net


def _publish(request: StartRequest, origin: Setting | None, net: Net) -> list[str]:
    """Raises UsageProblem. A branch that is made from another's capture publishes nothing by itself."""
    asked = wanted(request.publish)
    if asked and net != "private":
        raise UsageProblem("use", "--publish", "it leads into a private network", "leave it out")
    if asked is None:
        return origin.publish if origin and request.from_name is None and net == "private" else []
    return asked


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


def _shell(request: StartRequest, base: str, origin: Setting | None, tree: str | None, looking: Looking) -> str:
    """The path of the shell that is asked for; empty: that of the user. Raises UsageProblem if there is no such program
    in the session's files.
    """
    if request.shell is not None:
        roots = [base] if tree is None else [layout.upper_of(tree), base]
        found = start_plan.find_program(roots, request.shell, looking)
        if found is None:
            next_step = "name a shell that the session has, by its path or its name"
            raise UsageProblem(
                "start a session with", f"shell {request.shell!r}", "there is no such program", next_step
            )
        return found
    if origin is not None:
        return origin.shell
    found = start_plan.find_program([base], request.default_shell, looking) if request.default_shell else None
    return "" if found is None or start_plan.is_plain(found) else found
