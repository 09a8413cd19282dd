"""Facts about the caller of this process: home and branch, environment variables, user, terminal.

Loaded by every verb of the fast path: client/wire.py says what may be imported here.
"""

import os

from waypoint.client.address import find_home, pick_branch
from waypoint.client.quoting import as_json_text
from waypoint.model.errors import UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from waypoint.model.verbs import Given

# The variables that a session takes from its caller's environment (docs/protocol.md, section 1).
_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ", "WAYPOINT_PROMPT"})


def home_of(given: "Given") -> str:
    """Return the real path of the home that the command uses."""
    return find_home(given.text("home"))


def current_folder() -> str:
    """Return the caller's directory. Raises UsageProblem if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UsageProblem("start in", "this directory", "it was removed", "go to another directory (cd /)") from error


def absolute(path: str) -> str:
    """Return `path` as an absolute path without "..". Raises UsageProblem if it is not UTF-8."""
    return as_json_text(os.path.normpath(path if path.startswith("/") else f"{current_folder()}/{path}"))


def branch_of(given: "Given") -> str:
    """Return the branch of a command: the verb's argument or `--branch`, else $WAYPOINT_BRANCH, else `main`.

    Raises UsageProblem if the argument and the option name two branches.
    """
    return named_branch(given) or pick_branch()


def named_branch(given: "Given") -> str | None:
    """Return the branch that the verb's argument or `--branch` names; None if there is none. Raises UsageProblem if
    they name two branches.
    """
    named = named_branches(given)
    if len(named) > 1:
        raise UsageProblem(
            "use", "--branch", f"two branches were given: {' and '.join(named)}", "leave out one of them"
        )
    return named[0] if named else None


def named_branches(given: "Given") -> list[str]:
    """Return the branches that arguments and `--branch` name, each once. Raises UsageProblem for a bad name."""
    one = given.text("argument") if "argument" in given else None
    several = given.texts("arguments") if "arguments" in given else []
    return list(dict.fromkeys(pick_branch(name) for name in (one, *several, given.text("branch")) if name is not None))


def is_default_branch(given: "Given") -> bool:
    """Return True if the caller has named no branch, so that `branch_of` returns `main`."""
    return not named_branches(given) and not os.environ.get("WAYPOINT_BRANCH")


def caller_env() -> dict[str, str]:
    """Return the variables that a session takes over: type of the terminal, language, time zone, whether the prompt
    shows the branch.
    """
    return {name: value for name, value in os.environ.items() if name in _TAKEN or name.startswith("LC_")}


def sudo_caller() -> str | None:
    """Return the user who called sudo; None without sudo. The daemon sees only root."""
    return os.environ.get("SUDO_USER") if os.geteuid() == 0 and os.environ.get("SUDO_UID") else None


def asker_of(given: "Given") -> dict[str, object]:
    """Return the fields of a request by which the daemon decides whether a running session is the caller's."""
    user, default = given.text("user"), sudo_caller()
    if user == "":  # it may come from an unset variable: do not use a default
        raise UsageProblem("use", "--user", "its value is empty", "give a value, or leave out the option")
    fields = (("user", user), ("default_user", default), ("default_branch", is_default_branch(given) or None))
    return {name: value for name, value in fields if value is not None}


def require_terminal(tried: str, on: str, next_step: str) -> None:
    """Raise UsageProblem if stdin is no terminal."""
    if not os.isatty(0):
        raise UsageProblem(tried, on, "stdin is not a terminal", next_step)


def kinds(items: "list[str]", option: str, path_of: "Callable[[str], str]") -> "dict[str, str]":
    """The paths of `--attach KIND=PATH`, by kind. `option`: its name; "" for an argument."""
    flag = f"--{option} " if option else ""
    found: dict[str, str] = {}
    for item in items:
        kind, equals, path = item.partition("=")
        on = f"{flag}{item}"
        if kind in found:
            raise UsageProblem("use", on, f"the kind {kind} is given twice", "give each kind once")
        if not equals or not path or not _is_kind(kind):
            wrong = f"{kind!r} is not a kind, which has a lower-case letter and then lower-case letters, digits, - or _"
            said = wrong if equals and path else "it is not KIND=PATH"
            example = "model=/opt/model" if option == "attach-at" else "model=./model"
            raise UsageProblem("use", on, said, f"write it like this: {flag}{example}")
        found[kind] = path_of(path)
    return found


def _is_kind(word: str) -> bool:
    """Whether `word` matches the pattern of kinds in the requests, [a-z][a-z0-9_-]{0,31}."""
    letters = word.replace("-", "").replace("_", "")
    return word[:1].isalpha() and letters.isascii() and letters.isalnum() and letters.islower() and len(word) <= 32
