"""Names of the machine's users and groups."""


def user_name(uid: int) -> str:
    """Return the name of the user `uid`, or the number as text."""
    import pwd  # takes a millisecond, which the command line's fast path would feel

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return the name of the group `gid`, or the number as text."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
