"""Users as the session's base knows them (passwd(5), group(5)): for base `/` from the host's databases, which may be
more than files (LDAP, sssd), else from the base's files.
"""

import os
import pwd
from typing import NamedTuple

import msgspec

from waypoint.linux.storage import beneath
from waypoint.model.errors import StateConflict, UsageProblem
from waypoint.model.records import User
from waypoint.model.users import user_name


class Asker(NamedTuple):
    """The caller who asks for a session as `user`. `default_user`: for whom the client speaks, such as the caller of
    sudo. `default_branch`: whether the caller has not named the branch.
    """

    user: str | None
    default_user: str | None
    uid: int
    default_branch: bool


_MOST_BYTES = 16 << 20  # the maximum size of a base's passwd or group file: enough for a hundred thousand users
_NO_UID = 2**32 - 1  # (uid_t) -1: "leave it as it is"


def find_user(base: str, who: str) -> User:
    """Return the user with the name or number `who`. A number needs no entry in the base. Raises UsageProblem."""
    return _host_user(who) if os.path.realpath(base) == "/" else _file_user(base, who)


def in_base(folder: str, user: User) -> User:
    """The machine's user in a base that names users differently: with the same ids and groups, and the home directory
    and shell of the base's user with this number.
    """
    found = _file_user(folder, str(user.uid))
    return msgspec.structs.replace(user, home=found.home, shell=found.shell)


def image_user(folder: str, text: str) -> User:
    """The user that a container image names, in its files: `USER` or `USER:GROUP`, by names or numbers. A number that
    is in no passwd has the group 0, as in docker. Raises UsageProblem.
    """
    who, _, group = text.partition(":")
    user = _file_user(folder, who)
    if not group and user.name == who and who.isdecimal():
        group = "0"
    if not group:
        return user
    found = [int(row[2]) for row in _rows(folder, "etc/group", 4) if row[0] == group and _is_id(row[2])]
    gid = found[0] if found else _number(group)
    if gid is None:
        said, next_step = f"there is no group {group!r} in the session", "give a user that exists there: --user NAME"
        raise UsageProblem("start a session as", f"user {text!r}", said, next_step)
    return msgspec.structs.replace(user, gid=gid, groups=[gid, *(one for one in user.groups[1:] if one != gid)])


def _host_user(who: str) -> User:
    try:
        number = _number(who)
        entry = pwd.getpwnam(who) if number is None else pwd.getpwuid(number)
    except KeyError:
        return _unnamed(who)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(
        name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=entry.pw_dir, shell=entry.pw_shell
    )


def _file_user(base: str, who: str) -> User:
    for fields in _rows(base, "etc/passwd", 7):
        if who in (fields[0], fields[2]) and all(map(_is_id, fields[2:4])):
            name, uid, gid = fields[0], int(fields[2]), int(fields[3])
            rows = _rows(base, "etc/group", 4)
            members = [int(row[2]) for row in rows if name in row[3].split(",") and _is_id(row[2])]
            return User(name=name, uid=uid, gid=gid, groups=[gid, *members], home=fields[5], shell=fields[6])
    return _unnamed(who)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(_NO_UID)) and int(text) < _NO_UID


def is_same(user: User, who: str) -> bool:
    return who in (user.name, str(user.uid))


def change_of(before: User, now: User) -> str:
    """If a session belongs to another user than the session from which it starts, whose user is `before`, return the
    reason why no shell state may be restored; otherwise "".
    """
    return "" if now.uid == before.uid else f"it belonged to {before.name}, and the session belongs to {now.name}"


def check_owner(on: str, owner: User, asker: Asker, command: str, *, is_live: bool) -> None:
    """Raise StateConflict if the asker wants to continue with a thing of `owner` without naming a user, or wants a live
    session to change its user. root is refused only on a default branch, which root may take for its own. `on`: the
    thing. `command`: the arguments of `waypoint` that continue with it.
    """
    who = asker.user or asker.default_user or user_name(asker.uid)
    is_meant = not is_live if asker.user else who == user_name(0) and not asker.default_branch
    if is_meant or is_same(owner, who):
        return
    said = (
        f"its running session belongs to {owner.name}, not to {who}"
        if asker.user
        else f"it belongs to {owner.name}, and you are {who}"
    )
    next_step = f"to continue as {owner.name}: waypoint {command} --user {owner.name}"
    raise StateConflict("continue", on, said, next_step, code="other-user")


def _number(who: str) -> int | None:
    """Return `who` as a uid; None if it is a name."""
    if not (who.isascii() and who.isdecimal()):
        return None
    digits = who.lstrip("0") or "0"
    if len(digits) > len(str(_NO_UID)) or int(digits) >= _NO_UID:
        raise UsageProblem(
            "start a session as", f"user {who!r}", "this is no valid user id", "give a user: --user NAME"
        )
    return int(digits)


def _unnamed(who: str) -> User:
    number = _number(who)
    if number is None:
        raise UsageProblem(
            "start a session as",
            f"user {who!r}",
            "there is no such user in the session",
            "give a user that exists there: --user NAME",
        )
    return User(name=who, uid=number, gid=number, groups=[number], home="/", shell="/bin/sh")


def _rows(base: str, path: str, width: int) -> list[list[str]]:
    data = beneath.read_in_root(base, path, _MOST_BYTES) or b""
    rows = [line.split(":") for line in data.decode(errors="surrogateescape").splitlines()]
    return [row for row in rows if len(row) >= width]
