"""Reading the daemon's answers to `shell`, `checkpoint`, `restore` and `fork`, and warnings about them on stderr."""

from waypoint.cli.output import tell
from waypoint.model.errors import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    Facts = dict[str, object]


def session_of(answer: object) -> "Facts":
    """The session in an answer of the daemon, or in a fork of `forks_of`. Raises Failed if there is none."""
    session = answer.get("session") if isinstance(answer, dict) else None
    if not isinstance(session, dict):
        raise _lacks("session")
    return session


def checkpoint_of(answer: object) -> "Facts":
    """The answer of the daemon as a checkpoint. Raises Failed if it is none."""
    if not isinstance(answer, dict):
        raise _lacks("checkpoint")
    return answer


def forks_of(answer: object) -> "list[Facts]":
    """The forks in an answer of the daemon: `{branch, pid, ms, session}` of each. Raises Failed if there are none."""
    forks = answer.get("forks") if isinstance(answer, dict) else None
    if not isinstance(forks, list):
        raise _lacks("forks")
    return forks


def _lacks(what: str) -> Failed:
    return Failed("understand", "the daemon", f"its answer has no {what}", "use one version of both")


def tell_left_out(session: "Facts", folder: str = "") -> None:
    """Print on stderr those mounts that the session lacks and that matter to who asks: that which the caller's `folder`
    is on, and those in which the branch has changes. `show` and `doctor` tell all. What `tell_degraded`
    tells is left to it.
    """
    left_out, degraded = session.get("left_out"), session.get("degraded")
    told = degraded if isinstance(degraded, list) else []
    for line in left_out if isinstance(left_out, list) else ():
        if line in told:
            continue
        point = line.partition(" (")[0].rstrip("/")
        if f"{folder}/".startswith(f"{point}/") or line.endswith("its changes wait)"):
            tell("not in the session", [line])


def tell_no_hooks(session: "Facts") -> None:
    """If the session has a shell that Waypoint has no hooks for, print on stderr what does not work with it."""
    if session.get("shell") and session.get("hooks") is False:
        said = f"{session['shell']} is neither bash nor zsh: 'waypoint exec' is refused ('waypoint run' works)"
        tell("without hooks", [f"{said}, and its prompt does not show the branch"])


def tell_degraded(facts: "Facts") -> None:
    """Print on stderr what was kept, or could be brought back, less faithfully than asked."""
    tell("degraded", facts.get("degraded"))
