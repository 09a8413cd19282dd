"""Reading the daemon's answers to `shell`, `checkpoint`, `restore` and `fork`, and warnings about them on stderr."""

from waypoint.cli.output import tell, tell_lines
from waypoint.client.wire import nonsense
from waypoint.model.paths import is_of_root
from waypoint.model.verbs.told import NOT_IN, told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.errors import WaypointError

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


def _lacks(what: str) -> "WaypointError":
    return nonsense(f"an answer without its {what}")


def tell_left_out(session: "Facts", folder: str = "") -> None:
    """Print on stderr the mounts that the session lacks and that matter to the caller: the one that the caller's
    `folder` is on, and those in which the branch has changes. `show` and `doctor` tell all of them. Lines that are in
    `degraded`, too, are left to `tell_degraded`.
    """
    left_out, degraded = session.get("left_out"), session.get("degraded")
    told = degraded if isinstance(degraded, list) else []
    for line in left_out if isinstance(left_out, list) else ():
        if f"{NOT_IN}: {line}" in told:
            continue
        point = line.partition(" (")[0].rstrip("/")
        if f"{folder}/".startswith(f"{point}/") or line.endswith("not in sight)"):
            tell(NOT_IN, [line])


def tell_host_ids(session: "Facts") -> None:
    """If the session's root is the machine's, print on stderr why."""
    why = session.get("why_host_ids")
    if why:
        tell("without ids of its own", [f"its root is the machine's, behind other walls: {why}"])


def tell_without_root(home: str) -> None:
    """If the daemon of `home` is an ordinary user's, print on stderr what its sessions do without."""
    if not is_of_root(home):
        said = (
            "programs are started again where they would be kept, and nothing is limited; 'waypoint doctor' says more"
        )
        tell("without root", [said])


def tell_no_seccomp(session: "Facts") -> None:
    """If no system call is refused to the session's processes, print on stderr why."""
    why = session.get("why_no_seccomp")
    if why:
        tell("without a filter of system calls", [f"behind other walls: {why}"])


def tell_unlimited(session: "Facts", asked: "list[str]") -> None:
    """Print on stderr which of the limits `asked` for the machine does not hold."""
    unlimited = session.get("unlimited")
    lines = unlimited if isinstance(unlimited, list) else []
    tell("without a limit", [line for line in lines if line.partition(":")[0] in asked])


def tell_network(session: "Facts") -> None:
    """If the session is on the machine's network, where its branch then stays, print on stderr what that means; if it
    is on a private one from which there is no way out, why.
    """
    if session.get("no_way_out"):
        tell("without a way out of its network", [str(session["no_way_out"])])
    if session.get("net") == "host":
        said = "what listens here is reached, on 127.0.0.1 and on abstract sockets too; no ping, no ports below 1024"
        tell("on the machine's network", [said])


def tell_published(session: "Facts") -> None:
    """Print on stderr which ports of the machine lead into the session."""
    ports = session.get("published")
    found = [str(one).rpartition(":") for one in ports] if isinstance(ports, list) else []
    tell("published", [f"{on} leads to its port {inner}" for on, _, inner in found])


def tell_no_hooks(session: "Facts") -> None:
    """If the session has a shell that Waypoint has no hooks for, print on stderr what does not work with it."""
    if session.get("shell") and session.get("hooks") is False:
        said = f"{session['shell']} is neither bash nor zsh: 'waypoint exec' is refused ('waypoint run' works)"
        tell("without hooks", [f"{said}, and its prompt does not show the branch"])


def tell_degraded(*answers: "Facts") -> None:
    """Print on stderr what was kept, or could be brought back, less faithfully than asked."""
    tell_lines(told(*answers))
