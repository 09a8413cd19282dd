"""The paths through which client, daemon, supervisor and sessions of one home meet.

docs/architecture.md, "Where things are", explains them. Every command and the supervisor load this module, so it
imports nothing but `os`.
"""

import os

SYSTEM_HOME = "/var/lib/waypoint"
RUNTIME = "/run/waypoint"
RUNTIME_MODE = 0o711  # of that folder and of each home's below it: others may pass through to the socket, not list
HOME_ID_HEX_DIGITS = 16
SUPERVISOR_LOCK, START_LOCK = "supervisor.lock", "start.lock"  # files in a home's runtime folder
SHARED_MEMORY = "/dev/shm"  # in a session: a tmpfs that is mounted from outside
_CONFIG_KEYS = frozenset({"home_id", "owner_uid", "group_gid", "pool", "ids"})

# In a scope of systemd, where sessions have cgroups of their own: the cgroup of the daemon and of what it starts.
DAEMON_GROUP = "daemon"

# Below a session's root.
RUN_FOLDER = "run/waypoint"  # the folder that the session's shell and the daemon share
OWN_FOLDER = ".waypoint"  # Waypoint's own programs; the skeleton layer brings it
COMMAND_FOLDER = "asking"  # in that folder: what a session's PATH ends with
INIT = f"{OWN_FOLDER}/init.sh"  # the script of pid 1
WRAPPER = f"{OWN_FOLDER}/wrapper.sh"  # that of sessions of earlier versions, which stood in the user's folder

# In the runtime folder of a session, and in the hot area of a capture (docs/architecture.md, "Where things are").
RING_FILE = "ring"
COMMAND_FILE = "exec.json"
TYPED_AHEAD_FILE = "typed-ahead"


def home_id(home: str) -> str:
    """The name of the home's folder below RUNTIME: the first hex digits of the SHA-256 of the home's real path."""
    return sha256_hex(os.fsencode(os.path.realpath(home)))[:HOME_ID_HEX_DIGITS]


def runtime_folder(home: str) -> str:
    """The home's folder for files that need not survive a reboot."""
    return f"{RUNTIME}/{home_id(home)}"


def socket_path(home: str) -> str:
    """The Unix socket on which the home's daemon serves clients (docs/protocol.md, section 1)."""
    return f"{runtime_folder(home)}/api.sock"


def log_path(home: str) -> str:
    """The log file of the daemon and the supervisor."""
    return f"{home}/daemon.log"


def older_log_path(home: str) -> str:
    """The log file before that one: its content until it grew too large."""
    return f"{log_path(home)}.1"


def config_path(home: str) -> str:
    """The file by which a folder is known as a home."""
    return f"{home}/config.json"


def is_config_of_home(content: object) -> bool:
    """True if `content`, as decoded from a config.json, is that of a home: many other programs have a file of this name
    too.
    """
    return isinstance(content, dict) and (not content or not _CONFIG_KEYS.isdisjoint(content))


def may_exist(path: str) -> bool:
    """True if `path` exists, or is in a folder that this user may not look into, as a home is for all but root."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def spelled(home: str, *words: str) -> str:
    """The command `waypoint WORDS` on this home, as it can be typed anywhere, also behind `sudo`, which drops
    WAYPOINT_HOME: for the next step of a message. The machine's home needs no naming.
    """
    named = [] if home == SYSTEM_HOME else ["--home", home]
    return " ".join(["waypoint", *map(quoted, [*named, *words])])


def as_root(home: str, *words: str) -> str:
    """As `spelled`, for a command that only root can run: with `sudo`, unless the caller is root."""
    return f"{'sudo ' if os.geteuid() else ''}{spelled(home, *words)}"


def quoted(word: str) -> str:
    """`word` as a shell takes it, for the next step of a message."""
    is_plain = word and all(letter.isalnum() or letter in "/._-+=:@%," for letter in word)
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"


def daemon_lock_path(home: str) -> str:
    """The lock that the daemon holds while it runs: the one process that may write to the home."""
    return f"{home}/daemon.lock"


def supervisor_lock_path(home: str) -> str:
    """The lock that the supervisor holds from before it listens until it ends. The file contains its pid."""
    return f"{runtime_folder(home)}/{SUPERVISOR_LOCK}"


def start_lock_path(home: str) -> str:
    """The lock under which supervisors start one after the other.

    A starting supervisor holds it until it listens, or has found that another supervisor does.
    """
    return f"{runtime_folder(home)}/{START_LOCK}"


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of `data` in hex, without an import of hashlib, which loads OpenSSL and takes 3 ms."""
    # The built-in module has had its new name since Python 3.12.
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())
