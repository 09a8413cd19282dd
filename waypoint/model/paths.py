"""The paths through which client, daemon, supervisor and sessions of one home meet.

docs/architecture.md, "Where things are", explains them. Every command and the supervisor load this module, so it
imports nothing but `os`.
"""

import os

SYSTEM_HOME = "/var/lib/waypoint"
RUNTIME = "/run/waypoint"
RUNTIME_LINK = "runtime"  # in a home without root: a link to its runtime folder
RUNTIME_MODE = 0o711  # of RUNTIME and of each home's folder in it: other users can reach the socket, but not list
SET_UP_BY_ROOT = f'sudo waypoint --home {SYSTEM_HOME} setup --user "$USER"'
"""The next step for a user whose home works without root. It names the machine's home, which that user uses then."""
HOME_ID_HEX_DIGITS = 16
SUPERVISOR_LOCK, START_LOCK = "supervisor.lock", "start.lock"  # files in a home's runtime folder
SHARED_MEMORY = "/dev/shm"  # in a session: a tmpfs that is mounted from outside
WITHOUT_ROOT = "without_root"  # key in config.json: the uid of the user whose daemon runs without root
_CONFIG_KEYS = frozenset({"home_id", "owner_uid", "group_gid", "pool", "ids"})

# In a scope of systemd, where sessions have cgroups of their own: the cgroup of the daemon and of what it starts.
DAEMON_GROUP = "daemon"

# Below a session's root.
RUN_FOLDER = "run/waypoint"  # the folder that the session's shell and the daemon share
OWN_FOLDER = ".waypoint"  # Waypoint's own programs, from the skeleton (the overlay's top read-only layer)
COMMAND_FOLDER = "asking"  # below OWN_FOLDER: the last folder of a session's PATH, with the command `waypoint`
INIT = f"{OWN_FOLDER}/first.sh"  # the script of pid 1
WRAPPER = f"{OWN_FOLDER}/wrapper.sh"  # the same script in sessions of earlier versions

# In the runtime folder of a session, and in the hot area of a capture (docs/architecture.md, "Where things are").
RING_FILE = "ring"
COMMAND_FILE = "exec.json"
QUEUES_FILE = "queues"
TYPED_AHEAD_FILE = "typed-ahead"  # in captures of earlier versions, in place of QUEUES_FILE


def home_id(home: str) -> str:
    """Return the name of the home's folder below RUNTIME: the first hex digits of the SHA-256 of the home's real
    path.
    """
    return sha256_hex(os.fsencode(os.path.realpath(home)))[:HOME_ID_HEX_DIGITS]


def runtime_folder(home: str) -> str:
    """Return the path of the home's folder for files that need not survive a reboot. In a home without root, a link
    names it, which counts only for the user who has made it; and not if another user has made the folder that it names
    (in /tmp, after a reboot), and would answer in the daemon's place.
    """
    link = f"{home}/{RUNTIME_LINK}"
    if _owner(link) == os.geteuid():
        folder = os.readlink(link)
        if {_owner(os.path.dirname(folder)), _owner(folder)} <= {None, os.geteuid()}:
            return folder
    return f"{RUNTIME}/{home_id(home)}"


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:  # it does not exist; only root may look into the home
        return None


def socket_path(home: str) -> str:
    """Return the path of the Unix socket on which the home's daemon serves clients (docs/protocol.md, section 1)."""
    return f"{runtime_folder(home)}/api.sock"


def log_path(home: str) -> str:
    """Return the path of the log of the daemon and the supervisor."""
    return f"{home}/daemon.log"


def older_log_path(home: str) -> str:
    """Return the path of the older log: the log is renamed to it when it grows too large."""
    return f"{log_path(home)}.1"


def config_path(home: str) -> str:
    """Return the path of the home's settings. A folder without this file is not a home."""
    return f"{home}/config.json"


def is_config_of_home(content: object) -> bool:
    """Return True if `content`, decoded from a config.json, is that of a home. Other programs use files of this name,
    too.
    """
    return isinstance(content, dict) and (not content or not _CONFIG_KEYS.isdisjoint(content))


def may_exist(path: str) -> bool:
    """Return True if `path` exists, or if this user may not look into its folder (only root may look into a home)."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def spelled(home: str, *words: str) -> str:
    """Return the command `waypoint WORDS` on this home, for the next step of a message. Names the home with `--home`,
    unless it is the machine's: the user may type the command behind `sudo`, which drops WAYPOINT_HOME.
    """
    named = [] if home == SYSTEM_HOME else ["--home", home]
    return " ".join(["waypoint", *map(quoted, [*named, *words])])


def as_root(home: str, *words: str) -> str:
    """Like `spelled`, for a command that only root can run: prefixed with `sudo`, unless the caller is root."""
    return f"{'sudo ' if os.geteuid() else ''}{spelled(home, *words)}"


def quoted(word: str) -> str:
    """`word` as a shell takes it, for the next step of a message."""
    is_plain = word and all(letter.isalnum() or letter in "/._-+=:@%," for letter in word)
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"


def daemon_lock_path(home: str) -> str:
    """Return the path of the lock that the home's only daemon holds while it runs."""
    return f"{home}/daemon.lock"


def supervisor_lock_path(home: str) -> str:
    """Return the path of the lock that the supervisor holds from before it listens until it ends. The file contains
    the supervisor's pid.
    """
    return f"{runtime_folder(home)}/{SUPERVISOR_LOCK}"


def start_lock_path(home: str) -> str:
    """Return the path of the lock under which supervisors start one after the other.

    A starting supervisor holds it until it listens, or has found that another supervisor does.
    """
    return f"{runtime_folder(home)}/{START_LOCK}"


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex, without an import of hashlib, which loads OpenSSL and takes 3 ms."""
    # The built-in module has had its new name since Python 3.12.
    try:
        from _sha2 import sha256  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(data).hexdigest())


def is_below(path: str, folder: str) -> bool:
    """Whether the absolute path `path` is `folder` or below it. Does not access files."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
