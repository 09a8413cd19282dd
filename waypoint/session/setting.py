"""From a request to the setting of a session: what was asked for, else what its origin was, else the defaults."""

import os

from waypoint.model.errors import UsageProblem
from waypoint.model.records import Setting
from waypoint.model.requests import StartRequest
from waypoint.session.ground import start_plan
from waypoint.session.users import find_user, user_name


def plan_setting(request: StartRequest, uid: int, origin: Setting | None) -> Setting:
    """What the session will be: what was asked for, else what its origin was, else the defaults."""
    base = os.path.realpath(request.base) if request.base is not None else (origin.base if origin else "/")
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
    binds = [start_plan.parse_bind(text) for text in request.binds] or (origin.binds if origin else [])
    for bind in binds:
        start_plan.check_bind(bind)
    return Setting(
        base=base,
        binds=binds,
        net=request.net or (origin.net if origin else "private"),
        user=user,
        cwd=request.cwd or (origin.cwd if origin else user.home),
        env=start_plan.taken_env(request.env),
        command=request.command,
    )
