"""Where the parts of one home find each other: docs/architecture.md, "Where things are".

Loaded by every command and by the supervisor, so it imports nothing but `os`.
"""

import os

SYSTEM_HOME = "/var/lib/waypoint"
RUNTIME = "/run/waypoint"
HOME_ID_HEX_DIGITS = 16


def home_id(home: str) -> str:
    """What names the home below RUNTIME: the start of the SHA-256 of its real path."""
    return _sha256(os.fsencode(os.path.realpath(home)))[:HOME_ID_HEX_DIGITS]


def runtime_folder(home: str) -> str:
    return f"{RUNTIME}/{home_id(home)}"


def socket_path(home: str) -> str:
    return f"{runtime_folder(home)}/api.sock"


def log_path(home: str) -> str:
    """What daemon and supervisor have to say."""
    return f"{home}/daemon.log"


def daemon_lock_path(home: str) -> str:
    """Held by the one writer of the home."""
    return f"{home}/daemon.lock"


def supervisor_lock_path(home: str) -> str:
    """Held by the supervisor, whose pid it contains, from before it listens until its end."""
    return f"{runtime_folder(home)}/supervisor.lock"


def start_lock_path(home: str) -> str:
    """Held by a supervisor until it listens or knows of another that does, so that they start one after the other."""
    return f"{runtime_folder(home)}/start.lock"


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
