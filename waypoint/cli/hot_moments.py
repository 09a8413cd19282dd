"""`checkpoint`, `restore` and `fork` once their options are known. See client/wire.py on what may be loaded here."""

import os

from waypoint.cli.hot import find_place, write_all
from waypoint.cli.hot_shell import session_of, tell_left_out
from waypoint.client import plainjson
from waypoint.client.address import find_home
from waypoint.client.link import ask, quote_branch
from waypoint.client.quoting import as_json_text, exec_text
from waypoint.model.errors import Failed, UsageProblem
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.cli.hot_verbs import Value

    Parameters = dict[str, Value]

_SHORT = 12  # digits of a capture's id that people are shown


def checkpoint(given: "Parameters") -> int:
    """The exit status. Raises WaypointError."""
    home, branch = find_place(given)
    body = {
        "name": _name(given),
        "message": as_json_text(str(given["message"] or "")),
        "tier": given["tier"] or "auto",
        "force": given["force"],
        "park": given["park"],
    }
    made = ask(home, "POST", f"/v1/sessions/{quote_branch(branch)}/checkpoint", body, may_repeat=False)
    if not isinstance(made, dict):
        raise Failed("understand", "the daemon", "its answer has no checkpoint", "use one version of both")
    if given["json"]:
        print_json(made)
        return 0
    _print([f"{made['name']}  {made['capture'][:_SHORT]}  {made['tier']}  paused {made['paused_ms']:.0f} ms"])
    _tell_degraded(made["degraded"])
    return 0


def restore(given: "Parameters") -> int:
    """The exit status. Raises WaypointError."""
    home, branch = find_place(given, "b")
    name, new, only = _name(given), given["branch"], given["only"]
    if new is None:
        target = f"/v1/sessions/{quote_branch(branch)}/restore"
        session = session_of(ask(home, "POST", target, {"name": name, "only": only}, may_repeat=False))
    else:
        _check_beside(given)
        branch = parse_name(str(new))
        ask(home, "POST", "/v1/forks", {"name": name, "branches": [branch]}, may_repeat=False)
        session = session_of(ask(home, "GET", f"/v1/sessions/{quote_branch(branch)}"))
    tell_left_out(session)
    if given["json"]:
        print_json(session)
    else:
        _print([branch])
        _tell_degraded(session.get("degraded"))
    return 0


def _tell_degraded(items: object) -> None:
    for item in items if isinstance(items, list) else ():
        os.write(2, f"degraded: {item}\n".encode(errors="backslashreplace"))


def _check_beside(given: "Parameters") -> None:
    on = f"--branch {given['branch']}"
    if given["b"] is not None:
        raise UsageProblem("restore with", on, "-b names a branch to restore on in place", "leave one of them out")
    if given["only"] is not None:
        next_step = f"for the files alone: waypoint shell {given['branch']} --from {given['name']}"
        raise UsageProblem("restore with", on, "--only is for a branch that is there", next_step)


def fork(given: "Parameters") -> int:
    """The exit status: 1 if the command failed in one of the forks. Raises WaypointError."""
    home = find_home(str(given["home"]) if given["home"] else None)
    words = given["words"] if isinstance(given["words"], list) else []
    if words:
        exec_text(words)  # what cannot be sent is refused before anything is forked
    forks = _fork(home, given)
    if words:
        from waypoint.cli.fork_command import run_in_each

        return run_in_each(home, forks, words, as_json=bool(given["json"]))
    if given["json"]:
        print_json([{**fork, "exit": None} for fork in forks])
    else:
        _print([str(fork["branch"]) for fork in forks])
    return 0


def _fork(home: str, given: "Parameters") -> list[dict[str, object]]:
    """`{branch, pid, ms}` of each that was made."""
    name, branches, count, prefix = _name(given), given["branches"], given["count"], given["prefix"]
    if bool(branches) == (count is not None):
        said = "branches and a number of them exclude each other" if branches else "neither branches nor a number given"
        raise UsageProblem("fork", repr(name), said, "name the branches, or give -n N")
    if prefix is not None and count is None:
        raise UsageProblem("use", "--prefix", "it goes with -n", "give the branches their whole names")
    body: dict[str, object] = {"name": name, "count": count}
    if isinstance(branches, list):
        body["branches"] = [parse_name(branch) for branch in branches]
    if prefix is not None:
        body["prefix"] = parse_name(str(prefix))
    answer = ask(home, "POST", "/v1/forks", body, may_repeat=False)
    forks = answer.get("forks") if isinstance(answer, dict) else None
    if not isinstance(forks, list):
        raise Failed("understand", "the daemon", "its answer has no forks", "use one version of both")
    return forks


def print_json(value: object) -> None:
    """One value on stdout. Raises OSError if that cannot be written."""
    _print([plainjson.encode(value)])


def _print(lines: list[str]) -> None:
    write_all(1, memoryview("".join(f"{line}\n" for line in lines).encode()))


def _name(given: "Parameters") -> str:
    return parse_name(str(given["name"]))
