"""Users as the session's base knows them (passwd(5), group(5)).

With base `/` the host's own databases are asked (they may be more than files: LDAP, sssd); with another base its files
are read.
"""

import grp
import os
import pwd
from pathlib import Path

from waypoint.model.errors import UsageProblem
from waypoint.model.records import User

_NO_UID = 2**32 - 1  # (uid_t) -1: "leave it as it is"


def find_user(base: str, who: str) -> User:
    """The user named `who`, or with that number. Raises UsageProblem if the base does not know the name."""
    return _host_user(who) if os.path.realpath(base) == "/" else _file_user(Path(base), who)


def _host_user(who: str) -> User:
    try:
        entry = pwd.getpwuid(int(who)) if who.isdigit() else pwd.getpwnam(who)
    except (KeyError, OverflowError):
        return _unnamed(who)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(
        name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=entry.pw_dir, shell=entry.pw_shell
    )


def _file_user(base: Path, who: str) -> User:
    for fields in _rows(base / "etc/passwd", 7):
        if who in (fields[0], fields[2]):
            name, uid, gid = fields[0], int(fields[2]), int(fields[3])
            members = [int(row[2]) for row in _rows(base / "etc/group", 4) if name in row[3].split(",")]
            return User(name=name, uid=uid, gid=gid, groups=[gid, *members], home=fields[5], shell=fields[6])
    return _unnamed(who)


def _unnamed(who: str) -> User:
    if not who.isdigit():
        raise UsageProblem("start a session as", f"user {who!r}", "the base has no such user", "give --user NAME")
    number = int(who)
    if number >= _NO_UID:
        raise UsageProblem("start a session as", f"user {who!r}", "there is no such number", "give --user NAME")
    return User(name=who, uid=number, gid=number, groups=[number], home="/", shell="/bin/sh")


def _rows(path: Path, width: int) -> list[list[str]]:
    if not path.is_file():
        return []
    rows = [line.split(":") for line in path.read_text(errors="surrogateescape").splitlines()]
    return [row for row in rows if len(row) >= width]


def user_name(uid: int) -> str:
    """The host's name for `uid`, or the number as text."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The host's name for `gid`, or the number as text."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
