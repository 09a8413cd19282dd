"""The paths through which client, daemon, supervisor and sessions of one home meet.

docs/architecture.md, "Where things are", explains them. Every command and the supervisor load this module, so it
imports nothing but `os`.
"""

import os

SYSTEM_HOME = "/var/lib/waypoint"
OWN_HOME = ".local/share/waypoint"  # below an ordinary user's home directory
RUNTIME = "/run/waypoint"
OWN_RUNTIME = "run"  # the same, in a home of an ordinary user's
RUNTIME_MODE = 0o711  # of that folder and of each home's below it: others may pass through to the socket, not list
HOME_ID_HEX_DIGITS = 16
SHARED_MEMORY = "/dev/shm"  # a tmpfs; in a session: one of its own, mounted from outside
_CONFIG_KEYS = frozenset({"home_id", "owner_uid", "group_gid", "pool", "ids"})

# Below a session's root.
RUN_FOLDER = "run/waypoint"  # the folder that the session's shell and the daemon share
OWN_FOLDER = ".waypoint"  # Waypoint's own programs; the skeleton layer brings it
COMMAND_FOLDER = "asking"  # in that folder: what a session's PATH ends with
INIT = f"{OWN_FOLDER}/first.sh"  # the script of pid 1
WRAPPER = f"{OWN_FOLDER}/wrapper.sh"  # that of sessions of earlier versions, which stood in the user's folder

# In a session. NULL, NOTHING: what is mounted over a file, and over a folder, that it must not see; read-only, as all
# of /dev is.
PROC, DEVICES, TERMINALS = "/proc", "/dev", "/dev/pts"
NULL, NOTHING = "/dev/null", "/dev/.empty"

# In the runtime folder of a session, and in the hot area of a capture (docs/architecture.md, "Where things are").
RING_FILE = "ring"
COMMAND_FILE = "exec.json"
TYPED_AHEAD_FILE = "typed-ahead"


def home_id(home: str) -> str:
    """The name of the home's folder below RUNTIME: the first hex digits of the SHA-256 of the home's real path."""
    return sha256_hex(os.fsencode(os.path.realpath(home)))[:HOME_ID_HEX_DIGITS]


def runtime_folder(home: str) -> str:
    """The home's folder for files that need not survive a reboot: below RUNTIME, or below the home of an ordinary user,
    whose folder in /run goes when the user logs out, and is not there in every login.
    """
    return f"{RUNTIME}/{home_id(home)}" if is_of_root(home) else f"{os.path.realpath(home)}/{OWN_RUNTIME}"


def runtime_folders(home: str) -> tuple[str, ...]:
    """The folders that are made for `runtime_folder`, which is the last of them."""
    own = runtime_folder(home)
    return (RUNTIME, own) if os.path.dirname(own) == RUNTIME else (own,)


def is_of_root(home: str) -> bool:
    """Whether root's daemon serves the home, or would if the home were made now. If not, an ordinary user's does."""
    try:
        return os.stat(home).st_uid == 0
    except OSError:  # not there, or behind a folder that is not to be entered: root's
        return os.geteuid() == 0 or not _may_make(home)


def _may_make(home: str) -> bool:
    """Whether the caller may make the folder `home`, and the missing ones above it."""
    above = os.path.dirname(home)
    while above != "/" and not os.path.lexists(above):
        above = os.path.dirname(above)
    return os.access(above, os.W_OK)


def socket_path(home: str) -> str:
    """The Unix socket on which the home's daemon serves clients (docs/protocol.md, section 1)."""
    return f"{runtime_folder(home)}/api.sock"


def passphrase_path(home: str) -> str:
    """The file, in memory, with the passphrase of the home's store that was typed. It goes with the machine's power."""
    return f"{SHARED_MEMORY}/waypoint-{home_id(home)}"


def hot_memory_path(home: str) -> str:
    """The folder, in memory, in which images of processes are born (capture/in_memory). It goes with the power, too."""
    return f"{passphrase_path(home)}-hot"


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


def spelled(home: str, *words: str) -> str:
    """The command `waypoint WORDS` on this home, as it can be typed anywhere, also behind `sudo`, which drops
    WAYPOINT_HOME: for the next step of a message. The machine's home needs no naming.
    """
    named = [] if home == SYSTEM_HOME else ["--home", home]
    return " ".join(["waypoint", *map(quoted, [*named, *words])])


def as_root(home: str, *words: str) -> str:
    """As `spelled`, for a command of whose home it is: with `sudo`, if that is root, and the caller is not."""
    return f"{'sudo ' if os.geteuid() and is_of_root(home) else ''}{spelled(home, *words)}"


def quoted(word: str) -> str:
    """`word` as a shell takes it, for the next step of a message."""
    is_plain = word and all(letter.isalnum() or letter in "/._-+=:@%," for letter in word)
    return word if is_plain else "'" + word.replace("'", "'\\''") + "'"


def daemon_lock_path(home: str) -> str:
    """The lock that the daemon holds while it runs: the one process that may write to the home."""
    return f"{home}/daemon.lock"


def supervisor_lock_path(home: str) -> str:
    """The lock that the supervisor holds from before it listens until it ends. The file contains its pid."""
    return f"{runtime_folder(home)}/supervisor.lock"


def start_lock_path(home: str) -> str:
    """The lock under which supervisors start one after the other.

    A starting supervisor holds it until it listens, or has found that another supervisor does.
    """
    return f"{runtime_folder(home)}/start.lock"


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


def quoted_path(path: str) -> str:
    """`path` as git shows it (core.quotePath): in double quotes, with escapes, if there is something in it that a
    terminal or a reader of lines would act on. Bytes that are no text (surrogates) become `\\ooo`.
    """
    if path.isprintable() and '"' not in path and "\\" not in path:
        return path
    return '"' + "".join(map(_escaped, path)) + '"'


def _escaped(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if one in "\t\n":
        return "\\t" if one == "\t" else "\\n"
    if one.isprintable():
        return one
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(one))
