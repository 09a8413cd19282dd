"""Reading the daemon's answers to `shell`, `checkpoint`, `restore` and `fork`, and warnings about them on stderr."""

from waypoint.cli.output import note, warn, warn_lines
from waypoint.client.wire import malformed
from waypoint.model.outcomes import degraded_lines, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.errors import WaypointError

    Facts = dict[str, object]


def session_of(answer: object) -> "Facts":
    """Return the session in an answer of the daemon, or in a fork of `forks_of`. Raises Failed if there is none."""
    session = answer.get("session") if isinstance(answer, dict) else None
    if not isinstance(session, dict):
        raise _lacks("session")
    return session


def checkpoint_of(answer: object) -> "Facts":
    """Return the answer of the daemon as a checkpoint. Raises Failed if it is none."""
    if not isinstance(answer, dict):
        raise _lacks("checkpoint")
    return answer


def forks_of(answer: object) -> "list[Facts]":
    """Return the forks in an answer of the daemon: `{branch, pid, ms, session}` of each. Raises Failed if there are
    none.
    """
    forks = answer.get("forks") if isinstance(answer, dict) else None
    if not isinstance(forks, list):
        raise _lacks("forks")
    return forks


def failed_of(answer: object) -> "list[Facts]":
    """Return the sessions that a partial fork could not start: `{number, branch, error}` of each."""
    failed = answer.get("failed") if isinstance(answer, dict) else None
    if not isinstance(failed, list):
        raise _lacks("failed")
    return failed


def _lacks(what: str) -> "WaypointError":
    return malformed(f"an answer without its {what}")


def warn_of_new_session(session: "Facts", folder: str, limits: "list[str]", *, asked_network: bool) -> None:
    """Report on stderr which features the session that `shell` has started lacks. `folder`: the caller's folder, if the
    shell starts there; `limits`: the requested limits; `asked_network`: whether the caller requested a network.
    """
    if session.get("shell") and session.get("hooks") is False:
        said = f"{session['shell']} is neither bash nor zsh: 'waypoint exec' is refused ('waypoint run' works)"
        warn("without exec", [f"{said}, and the prompt does not show the branch"])
    if session.get("why_host_ids"):
        warn("without its own user ids", [f"root in the session is root of the machine: {session['why_host_ids']}"])
    if session.get("why_no_seccomp"):
        warn("without a filter of system calls", [str(session["why_no_seccomp"])])
    warn_unlimited([session], limits)
    if asked_network and session.get("no_way_out"):
        warn("without a connection to the outside", [str(session["no_way_out"])])
    if session.get("net") == "host":
        said = "the session can connect to all servers of this machine, also on 127.0.0.1 and abstract sockets"
        warn("on the machine's network", [f"{said}; ping and ports below 1024 do not work in it"])
    warn_left_out(session, folder)
    warn_degraded(session)


def warn_unlimited(sessions: "list[Facts]", limits: "list[str]") -> None:
    """Report on stderr which requested `limits` the machine does not enforce for new sessions, or only partly."""
    found = [text(one) for session in sessions for one in _items(session, "unlimited") if one.get("subject") in limits]
    warn("limit", list(dict.fromkeys(found)))


def note_ports(session: "Facts", branch: str = "") -> None:
    """Print on stderr where the ports of a new session are published. `branch`: its branch, if there are several."""
    for one in _items(session, "ports"):
        host = str(one.get("host"))
        address = f"{f'[{host}]' if ':' in host else host}:{one.get('host_port')}"
        note(f"{f'{branch}: ' if branch else ''}port {one.get('port')} is {address} on this machine")


def warn_left_out(session: "Facts", folder: str = "") -> None:
    """Report on stderr the mounts that the session lacks and that matter to the caller: the one that `folder` is on,
    and those in which the branch has changes. `show` and `doctor` list all of them. `warn_degraded` reports those that
    are in `degraded`, too.
    """
    known = _items(session, "degraded")
    for one in _items(session, "left_out"):
        point = str(one.get("subject")).rstrip("/")
        is_near = f"{folder}/".startswith(f"{point}/") or one.get("code") == "changes-hidden"
        if is_near and one not in known:
            warn("not in the session", [text(one)])


def _items(session: "Facts", name: str) -> "list[Facts]":
    items = session.get(name)
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def warn_degraded(*answers: "Facts") -> None:
    """Report on stderr which parts were not kept or restored completely."""
    warn_lines(degraded_lines(*answers))
