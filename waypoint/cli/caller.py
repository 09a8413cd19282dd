"""The caller of this process: the home and the branch that are meant, the variables, the user and the terminal.

Loaded by every verb of the fast path: client/wire.py says what may be imported here.
"""

import os

from waypoint.cli.output import named_home
from waypoint.client.address import find_home, pick_branch
from waypoint.model.errors import UnknownName, UsageProblem, WaypointError
from waypoint.model.names import meant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from waypoint.model.verbs import Given

ANSWER_S = 1.0  # how long the daemon may take to tell names
_MOST_COMPARED = 1000  # names, which takes up to 0.3 s

# The variables that a session takes from its caller's environment (docs/protocol.md, section 1).
_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ", "WAYPOINT_PROMPT"})


def home_of(given: "Given") -> str:
    """The real path of the home that the command uses."""
    return find_home(given.text("home"))


def current_folder() -> str:
    """The caller's folder. Raises UsageProblem if that was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UsageProblem("start in", "this folder", "it was removed", "go to another one (cd /)") from error


def branch_of(given: "Given") -> str:
    """The branch that a command on one branch uses: named by the verb's argument, if it has one, or by `--branch`, else
    $WAYPOINT_BRANCH, else `main`.

    Raises UsageProblem if the argument and the option name two branches.
    """
    named = named_branches(given)
    if len(named) > 1:
        raise UsageProblem("use", "--branch", f"two branches were given: {' and '.join(named)}", "leave one out")
    return named[0] if named else pick_branch()


def named_branches(given: "Given") -> list[str]:
    """The branches that arguments and `--branch` name, each once. Raises UsageProblem for a bad name."""
    one = given.text("argument") if "argument" in given else None
    several = given.texts("arguments") if "arguments" in given else []
    return list(dict.fromkeys(pick_branch(name) for name in (one, *several, given.text("branch")) if name is not None))


def caller_env() -> dict[str, str]:
    """The variables of this process that tell a session the terminal's type, the user's language, the time zone, and
    whether its prompt shows the branch.
    """
    return {name: value for name, value in os.environ.items() if name in _TAKEN or name.startswith("LC_")}


def sudo_caller() -> str | None:
    """The user who called sudo, None if this process does not run under sudo. The daemon itself sees only root."""
    return os.environ.get("SUDO_USER") if os.geteuid() == 0 and os.environ.get("SUDO_UID") else None


def asker_of(given: "Given") -> dict[str, object]:
    """The fields of a request that goes on with a live session, by which the daemon tells whether it is the caller's.

    Raises UsageProblem for an empty --user.
    """
    user, default = given.text("user"), sudo_caller()
    if user == "":  # it may come from an unset variable: do not use a default
        raise UsageProblem("use", "--user", "its value is empty", "leave it out, or give one")
    return {name: value for name, value in (("user", user), ("default_user", default)) if value is not None}


def ask_passphrase(*, is_new: bool) -> str:
    """A passphrase that the user types on the terminal, unseen; a new one twice. Raises UsageProblem if there is no
    terminal, nothing is typed, or the second one is another.
    """
    import getpass  # slow to load

    tried, on, again = "ask for", "the passphrase", "try again"
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        said = f"there is no terminal ({error.strerror})"
        raise UsageProblem(tried, on, said, "name a file that has it: --passphrase-file FILE") from error
    try:
        typed = getpass.getpass("Passphrase: ")
        if is_new and typed and getpass.getpass("The same once more: ") != typed:
            raise UsageProblem(tried, on, "the two are not the same", again)
    except KeyboardInterrupt:
        os.write(2, b"\n")  # the prompt has none
        raise
    except EOFError as error:
        raise UsageProblem(tried, on, "the terminal has ended", again) from error
    except UnicodeDecodeError as error:
        raise UsageProblem(tried, on, "it is no text in UTF-8", again) from error
    if not typed or typed != typed.encode(errors="ignore").decode():
        raise UsageProblem(tried, on, "it is no text in UTF-8" if typed else "nothing was typed", again)
    return typed


def require_terminal(tried: str, on: str, next_step: str) -> None:
    """Raise UsageProblem if stdin is no terminal."""
    if not os.isatty(0):
        raise UsageProblem(tried, on, "stdin is not a terminal", next_step)


def names_of(home: "str | None", kind: str) -> list[str]:
    """The names in the home, of the `kind` that completion offers (`names`, `branches`, `live`); [] if no daemon
    runs, this user may not talk to it, or it does not answer soon. `home`: the value of --home.
    """
    import _signal  # type: ignore[import-not-found, unused-ignore] # `signal` loads enum

    from waypoint.client.link import ask_running

    _signal.signal(_signal.SIGALRM, _give_up)
    _signal.setitimer(_signal.ITIMER_REAL, ANSWER_S)
    try:
        answer = ask_running(find_home(home and os.path.expanduser(home)), "GET", "/v1/names")
    except (WaypointError, OSError):
        return []
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
    rows = answer.get("names") if isinstance(answer, dict) else None
    return [str(row["name"]) for row in rows or () if _is_meant(row, kind)]


def _is_meant(row: dict[str, object], kind: str) -> bool:
    return kind == "names" or (row["kind"] == "branch" and (kind == "branches" or row["live"] is True))


def _give_up(number: int, frame: object) -> "NoReturn":
    raise TimeoutError


def with_meant(error: "WaypointError") -> "WaypointError":
    """The error; one about a name that is unknown with the names that are like it."""
    word = error.on.removeprefix("branch ").strip("'")
    if isinstance(error, UnknownName) and word and " " not in word:
        known = names_of(named_home(), "names" if error.on.startswith("'") else "branches")
        error.said += meant(word, known[:_MOST_COMPARED])
    return error
