"""Permissions of the caller of a request (records/callers.py). root and the fully trusted user may do everything;
another user may use only their own sessions and files; a process in a session gets no more than the session has.

Every planned session passes `restricted`, so a capture, a fork or an undo gives no more than a start would.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

import msgspec

from waypoint.launch.ground import homes, id_choice
from waypoint.launch.ground.limits import fill_in
from waypoint.linux.calls import abilities
from waypoint.linux.storage import access, beneath, mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import HostLacks, NotAllowed, StateConflict, UsageProblem
from waypoint.model.paths import SET_UP_BY_ROOT, is_below, spelled
from waypoint.model.records import NOBODY, Bind, Ref, SessionLimits, Setting, User, pinned_id
from waypoint.model.users import user_name
from waypoint.records import callers
from waypoint.records.names import Names
from waypoint.session.birth.users import find_user
from waypoint.session.live.resources import Resources

MAX_LIVE = 256
"""The maximum number of live sessions of a caller who is neither root nor fully trusted."""
MaySee = Callable[[User], bool]
_OUTSIDE = "run the command outside of the session"
_GROUPS = "/sys/fs/cgroup"
_DATA = ("/mnt", "/media", "/srv")  # hold no files of the system, so any user may cover them
# Root's programs trust these folders, also where they do not exist yet; and all whose names begin with `lib`.
_SYSTEM = frozenset(
    (
        *("bin", "boot", "dev", "efi", "etc", "gnu", "home", "nix", "opt", "proc", "root", "run", "sbin", "snap"),
        *("sys", "tmp", "usr", "var"),
    )
)


def check_own(resources: Resources, owner: User, tried: str, on: str) -> None:
    """Raise NotAllowed if the caller may not use a thing of `owner`. `tried`, `on`: as in WaypointError."""
    uid = _restricted_user(resources)
    if uid is not None and owner.uid != uid:
        said = f"it belongs to {owner.name}, and you are {user_name(uid)}"
        others = "root" if owner.uid == 0 else f"{owner.name} or root"
        next_step = f"use a branch or checkpoint of your own, or another name; or let {others} run the command"
        raise NotAllowed(tried, on, said, _OUTSIDE if id_choice.is_of_sessions(uid) else next_step)


def may_use(resources: Resources, uid: int) -> bool:
    """Whether the caller may use what belongs to the user `uid`."""
    return _restricted_user(resources) in (None, uid)


def check_name(resources: Resources, name: str, tried: str) -> None:
    """Raise NotAllowed if the caller may not use a capture or session that `name` stands for.

    Every caller may use a free name.
    """
    if _restricted_user(resources) is None:
        return
    names = resources.names
    check_ref(resources, names.ref(name), name, tried)
    for row in (*names.live(), *names.live(ready=False)):
        if row.branch == name:
            check_own(resources, row.setting.user, tried, f"branch {name}")


def check_ref(resources: Resources, ref: Ref | None, name: str, tried: str) -> None:
    if ref is not None and ref.capture is not None and _restricted_user(resources) is not None:
        for capture in resources.names.captures_of([ref.capture], may_lack=True).values():
            check_own(resources, capture.setting.user, tried, f"{ref.kind} {name}")


def check_origin(resources: Resources, owner: User, tried: str, name: str) -> None:
    check_own(resources, owner, tried, describe_name(resources.names, name))


def describe_name(names: Names, name: str) -> str:
    """`name` with its kind, for a message."""
    ref = names.ref(name)
    return f"{ref.kind if ref is not None else 'capture'} {name}"


def may_see(resources: Resources) -> MaySee:
    """A predicate, for any thread: may the caller see the programs, folders and variables of this user?"""
    uid, caller = _restricted_user(resources), callers.current()
    if caller is not None and caller.uid is None and caller.branch is not None:
        uid = next((row.setting.user.uid for row in resources.names.live() if row.branch == caller.branch), NOBODY)
        uid = uid or None  # root sees all
    return lambda owner: uid in (None, owner.uid)


def is_restricted(resources: Resources) -> bool:
    """Whether the caller may use only their own sessions and files."""
    return _restricted_user(resources) is not None


def check_unrestricted(resources: Resources, tried: str, on: str, said: str) -> None:
    """Raise NotAllowed, with the reason `said`, if `is_restricted`."""
    uid = _restricted_user(resources)
    if uid is not None:
        raise _not_allowed(uid, tried, on, said)


def check_session_count(resources: Resources, count: int) -> None:
    """Raise StateConflict if the caller may not have `count` more live sessions. A user counts their own; a process in
    a session counts all of the home, since it could fork any number.
    """
    uid, caller = _restricted_user(resources), callers.current()
    if uid is None and (caller is None or caller.branch is None or caller.uid is not None):
        return
    rows = [row for row in (*resources.names.live(), *resources.names.live(ready=False)) if row.stands_for is None]
    live = len(rows) if uid is None else sum(row.setting.user.uid == uid for row in rows)
    if live + count > MAX_LIVE:
        whose = "in this home" if uid is None else "of yours"
        next_step = _OUTSIDE if uid is None else "stop some of them: 'waypoint ps' lists them"
        said = f"more than {MAX_LIVE} sessions {whose} would then be running"
        raise StateConflict("start", f"{count} more sessions", said, next_step, code="too-many-sessions")


def check_base(resources: Resources, base: str) -> None:
    """Raise NotAllowed if the caller may not use `base` (`Setting.base`): with their files in it they could control
    root's programs. All may use pinned bases, which only root makes.
    """
    if base != "/" and pinned_id(base) is None:
        check_unrestricted(
            resources,
            "start a session on",
            f"base {base}",
            "with your own files in it, you could control programs of root",
        )


@contextlib.contextmanager
def as_caller(resources: Resources) -> Iterator[None]:
    """Give the calling thread the file permissions of the caller during the `with` block."""
    who = restricted_caller(resources)
    if who is None:
        yield
        return
    with access.as_user(who.uid, who.gid, who.groups):
        yield


def restricted_caller(resources: Resources) -> User | None:
    """The caller, with the rights of this user only; None: the caller has the rights of root."""
    uid = _restricted_user(resources)
    return None if uid is None else find_user("/", str(uid))


def restricted(resources: Resources, setting: Setting) -> Setting:
    """`setting` with the caller's permissions: a user's binds give no more than that user has on the host. Looks at
    files.
    """
    for bind in setting.binds:
        _check_bind(bind)
    if not abilities.own().owners and setting.user.uid != os.geteuid():
        said = f"this home works without root, so all its sessions belong to {user_name(os.geteuid())}"
        on = f"user {setting.user.name}"
        raise HostLacks("start a session as", on, said, SET_UP_BY_ROOT, code="needs-root")
    uid, caller = _restricted_user(resources), callers.current()
    if uid is not None:
        return _of_user(resources, find_user("/", str(uid)), setting)
    if caller is not None and caller.uid is None and caller.branch is not None:
        return _of_session(resources.names, caller.branch, setting)
    return setting


def _check_bind(bind: Bind) -> None:
    on = f"{bind.source} at {bind.target}"
    with contextlib.suppress(FileNotFoundError):  # the plan of the session's mounts reports it
        homes.check_bind(bind)
        fstype = mounts.holding(bind.source)[0].fstype
        if fstype in ("cgroup", "cgroup2") or is_below(bind.source, _GROUPS):
            raise UsageProblem(
                "bind",
                on,
                "it shows all cgroups of the machine, including those of other sessions",
                "leave out this --bind",
            )
        if fstype == "proc":
            raise UsageProblem("bind", on, "it shows the machine's processes", "use /proc, which shows the session's")


def _restricted_user(resources: Resources) -> int | None:
    """The caller's uid; None for root and for the fully trusted user."""
    caller = callers.current()
    uid = caller.uid if caller is not None else None
    return None if uid in (None, 0, resources.trusted) else uid


def _not_allowed(uid: int, tried: str, on: str, said: str) -> NotAllowed:
    return NotAllowed(tried, on, said, _OUTSIDE if id_choice.is_of_sessions(uid) else "let root run the command")


def _as_other_user(resources: Resources, who: User, name: str, said: str) -> NotAllowed:
    tried, on = "start a session as", f"user {name}"
    if id_choice.is_of_sessions(who.uid):
        return _not_allowed(who.uid, tried, on, said)
    trust = spelled(str(resources.places.home), "setup", "--user", who.name, "--trust", "full")
    next_step = f"let root run the command; or, if {who.name} may have the rights of root on this machine: sudo {trust}"
    return NotAllowed(tried, on, said, next_step)


def _of_user(resources: Resources, who: User, setting: Setting) -> Setting:
    if setting.user.uid != who.uid:
        raise _as_other_user(resources, who, setting.user.name, f"you are {who.name}")
    foreign = sorted({setting.user.gid, *setting.user.groups} - {who.gid, *who.groups})
    if foreign:
        said = f"{who.name} is not a member of the session's groups: {', '.join(map(str, foreign))}"
        raise _as_other_user(resources, who, who.name, said)
    check_base(resources, setting.base)
    usual = fill_in(SessionLimits())
    for name in ("memory", "pids"):
        asked, most = getattr(setting.limits, name), getattr(usual, name)
        if asked is not None and asked > most:
            raise _not_allowed(
                who.uid, "start a session with", f"--{name} {asked}", f"this is more than the default of {most}"
            )
    for bind in setting.binds:
        said = _why_not_bind(who, bind)
        if said:
            raise _not_allowed(who.uid, "bind", f"{bind.source} at {bind.target}", said)
    return msgspec.structs.replace(
        setting, binds=[msgspec.structs.replace(bind, as_user=True) for bind in setting.binds]
    )


def _why_not_bind(who: User, bind: Bind) -> str:
    """Why the user may not have this bind; "" if they may. Checked again when it is made (launch/externals.py)."""
    with access.as_user(who.uid, who.gid, who.groups):
        try:
            with contextlib.suppress(FileNotFoundError):  # the plan of the session's mounts reports it
                access.check(bind.source, write=not bind.readonly)
        except OSError as error:
            refused = f"{error.strerror or error}".lower()
            return f"{refused}: {bind.source}; {who.name} may not {'read' if bind.readonly else 'write to'} it"
        if not _may_cover(bind.target):
            data = ", ".join(_DATA)
            return f"root's programs trust the files at {bind.target}; use a folder of your own, {data}, or a new /NAME"
    return ""


def _may_cover(target: str) -> bool:
    """Whether the thread's user may cover `target` in a session. Refused where programs that change the user (sudo, su)
    look for files that they trust.
    """
    place = target
    with open_folder("/") as root:
        while not any(is_below(place, data) for data in _DATA):
            try:
                with beneath.opened(root, place) as fd:
                    access.check(beneath.name_of(fd), write=True)
                break
            except FileNotFoundError:
                above, _, name = place.rpartition("/")
                if not above:
                    return name not in _SYSTEM and not name.startswith("lib")
                place = above
            except OSError:  # not the user's, or a link
                return False
    return True


def _of_session(names: Names, branch: str, setting: Setting) -> Setting:
    """`setting`, if it gives a process in the session on `branch` no more than this session has."""
    live = next((row.setting for row in names.live() if row.branch == branch), None)
    binds = [msgspec.structs.replace(bind, as_user=_of_like(live, bind)) for bind in setting.binds]
    more = "its session has ended" if live is None else _more_than(live, setting)
    if more:
        raise NotAllowed("restore", f"a session by a command inside {branch}", more, _OUTSIDE)
    return msgspec.structs.replace(setting, binds=binds)


def _more_than(live: Setting, setting: Setting) -> str:
    if setting.user != live.user and live.user.uid != 0:
        return f"it belonged to {setting.user.name}, and this session belongs to {live.user.name}"
    if setting.base != live.base:
        return f"it had another base: {setting.base_text}"
    if _reaches_more(setting, live):
        return "it had the machine's network" if setting.net == "host" else "it could reach more of the network"
    allowed = [one for one in setting.allow if one not in live.allow]
    if allowed:
        return f"it had --allow {allowed[0]}"
    raised = [name for name in setting.limits.__struct_fields__ if _is_raised(setting, live, name)]
    if raised:
        return f"it had another limit: {raised[0]}"
    lacking = next((bind.source for bind in setting.binds if _like(live, bind) is None), None)
    return f"it had a --bind of {lacking}" if lacking else ""


def _reaches_more(setting: Setting, live: Setting) -> bool:
    widths = {"none": 0, "private": 1, "host": 2}
    if setting.net == live.net == "private" and live.allow_net:
        return not setting.allow_net or not {*setting.allow_net} <= {*live.allow_net}
    return widths[setting.net] > widths[live.net]


def _is_raised(setting: Setting, live: Setting, name: str) -> bool:
    """Whether the limit `name` of `setting` may exceed that of `live`. None is the default limit, of unknown size."""
    wanted, own = getattr(setting.limits, name), getattr(live.limits, name)
    return bool(wanted != own and (wanted is None or own is None or wanted > own))


def _like(live: Setting, bind: Bind) -> Bind | None:
    """Return the bind of `live` with the source and target of `bind` and at least its write access; None: none."""
    same = (one for one in live.binds if (one.source, one.target) == (bind.source, bind.target))
    return next((one for one in same if bind.readonly or not one.readonly), None)


def _of_like(live: Setting | None, bind: Bind) -> bool:
    like = _like(live, bind) if live is not None else None
    return bind.as_user or (like is not None and like.as_user)
