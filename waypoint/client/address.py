"""Where things are: the home, its control socket, the branch that is meant when none is named.

Part of every command's start-up, so it loads nothing but `os` and a built-in hash.
"""

import os

from waypoint.model.names import parse_name

SYSTEM_HOME = "/var/lib/waypoint"
RUNTIME = "/run/waypoint"
HOME_ID_HEX_DIGITS = 16
# Only a session has this: it comes with the skeleton layer (docs/architecture.md, "Where things are").
SESSION_MARK = "/.waypoint/init"


def find_home(asked: str | None = None) -> str:
    """The real path of the home: `asked`, else $WAYPOINT_HOME, else the machine's; it need not exist.

    An ordinary user has a home of their own only after making one; otherwise the machine's is meant, whose daemon may
    serve them.
    """
    named = asked or os.environ.get("WAYPOINT_HOME")
    if named:
        return os.path.realpath(named)
    if os.geteuid() != 0:
        own = os.path.expanduser("~/.local/share/waypoint")
        if os.path.exists(f"{own}/config.json"):
            return os.path.realpath(own)
    return os.path.realpath(SYSTEM_HOME)


def home_id(home: str) -> str:
    """What names the home below RUNTIME: the start of the SHA-256 of its real path (docs/protocol.md, section 1)."""
    return _sha256(os.fsencode(home))[:HOME_ID_HEX_DIGITS]


def runtime_folder(home: str) -> str:
    return f"{RUNTIME}/{home_id(home)}"


def socket_path(home: str) -> str:
    return f"{runtime_folder(home)}/api.sock"


def pick_branch(asked: str | None = None) -> str:
    """`asked`, else $WAYPOINT_BRANCH (set in a session to its own), else `main`. Raises UsageProblem for a bad name."""
    return parse_name(asked if asked is not None else os.environ.get("WAYPOINT_BRANCH") or "main")


def is_inside_session() -> bool:
    return os.path.exists(SESSION_MARK)


def _sha256(data: bytes) -> str:
    # hashlib would load OpenSSL, 3 ms. The built-in module was renamed in Python 3.12.
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())
