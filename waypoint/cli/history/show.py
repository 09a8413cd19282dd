"""`waypoint show`."""

from collections.abc import Mapping, Sequence

from waypoint.cli.output import one_line, print_json, print_lines
from waypoint.cli.tables import age, print_table, size
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName, WaypointError, cleaned
from waypoint.model.facts import CaptureFacts, LimitFacts, SessionFacts
from waypoint.model.verbs import Given

_WIDTH = 13
_KEPT_IN = {
    "memory": "memory: lost with the machine's power, unless it comes to the store before",
    "disk": "disk, not in the store yet: if the machine's power fails, it may be torn",
    "torn": "disk: the machine went down before this was in the store, so it may be torn",
    "store": "store: it survives a power loss",
    "store alone": "store alone, nothing on disk besides; who brings it back needs no more",
}
_CALLS = {
    "default": "without namespaces and mounts",
    "userns": "with namespaces and mounts (--allow userns)",
    "none": "all of the kernel's",
}


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client, name = Client(given.text("home")), given.required("name")
    try:
        shown: CaptureFacts | SessionFacts = client.history.show(name)
    except UnknownName:
        live = _live(client, name)
        if live is None:
            raise
        shown = live
    if given.flag("json"):
        print_json(shown)
    elif isinstance(shown, CaptureFacts):
        is_name = name == shown.branch or name in shown.names  # else an id
        live = _live(client, name) if is_name else None
        _print([*_facts(shown), *(_of_live(live) if live else [])])
        if shown.processes:
            print_lines([""])
            rows = [(str(one.pid), one.tier, one.profile or "-", one.command, one.why) for one in shown.processes]
            print_table(("PID", "TIER", "PROFILE", "COMMAND", "WHY"), rows, right=frozenset({"PID"}))
    else:
        _print([*_of_uncaptured(shown), *_of_live(shown)])
    return 0


def _print(facts: list[tuple[str, str]]) -> None:
    """Print headings and values. A line with an empty value is not printed."""
    print_lines([cleaned(f"{heading:<{_WIDTH}}{value}") for heading, value in facts if value])


def _live(client: Client, name: str) -> SessionFacts | None:
    """The session on the branch `name`; None if it is not live, or is no branch."""
    try:
        return client.session(name).refresh()
    except WaypointError:
        return None


def _of_uncaptured(live: SessionFacts) -> list[tuple[str, str]]:
    """Headings and values of a session of which nothing was captured yet."""
    return [
        ("branch", live.branch),
        ("capture", "none yet"),
        ("state", live.state),
        ("created", f"{live.created} ({age(live.created)} ago)"),
        ("base", live.base or ""),
        ("user", live.user or ""),
        ("folder", one_line(live.cwd or "")),
        ("network", live.net or ""),
        *(("shared", one_line(line)) for line in live.shared or []),
    ]


def _of_live(found: SessionFacts) -> list[tuple[str, str]]:
    """What of the machine is not in the live session, why its ids are the machine's if they are, and which system calls
    are refused to it.
    """
    why = found.why_host_ids
    ids = [("ids", f"the machine's: {one_line(why)}")] if why else []
    calls = [_CALLS[found.seccomp]] if found.seccomp else []
    calls += [one_line(found.why_no_seccomp)] if found.why_no_seccomp else []
    left_out = (("not in it", one_line(line)) for line in found.left_out or [])
    limits = [("limits", _limits(found.limits))] if found.limits else []
    unlimited = [("not held", one_line(line)) for line in found.unlimited or []]
    network = [("way out", one_line(", ".join(found.allow_net)))] if found.allow_net else []
    network = [("way out", f"none: {one_line(found.no_way_out)}")] if found.no_way_out else network
    network += [("published", one_line(one)) for one in found.published or []]
    network += [("published", f"nothing: {one_line(found.not_published)}")] if found.not_published else []
    return [*left_out, *network, *ids, ("system calls", ": ".join(calls)), *limits, *unlimited]


def _limits(limits: LimitFacts) -> str:
    """The limits in words; "" if there are none."""
    sizes = {"memory": limits["memory_bytes"], "disk": limits["disk_bytes"]}
    counts = {"cpus": limits["cpus"], "pids": limits["pids"]}
    words = [f"{name} {size(value)}" for name, value in sizes.items() if value is not None]
    return ", ".join([*words, *(f"{name} {value:g}" for name, value in counts.items() if value is not None)])


def _facts(capture: CaptureFacts) -> list[tuple[str, str]]:
    """Headings and values."""
    layers = [(f"  {kind}", _layer(layer)) for kind, layer in capture.layers.items() if layer is not None]
    return [
        ("capture", capture.capture),
        ("image", capture.image or ""),
        ("kept in", _kept_in(capture)),
        ("names", ", ".join(capture.names)),
        ("branch", capture.branch),
        ("parents", ", ".join(capture.parents)),
        ("tier", f"{capture.tier}{', all that it kept was removed' if capture.removed else ''}"),
        ("created", f"{capture.created} ({age(capture.created)} ago)"),
        ("reason", capture.reason),
        ("message", one_line(capture.message)),
        ("paused", "" if capture.paused_ms is None else f"{capture.paused_ms:.0f} ms"),
        ("exit", "" if capture.exit is None else str(capture.exit)),
        ("base", capture.base),
        ("user", capture.user),
        ("folder", one_line(capture.cwd)),
        ("machine", ", ".join(capture.machine.values())),
        ("environment", " ".join(map(one_line, capture.environment))),
        ("asked", _limits(capture.limits) if capture.limits else ""),
        ("layers", " "),
        *layers,
        *(("degraded", one_line(item)) for item in capture.degraded),
        *(("not here", one_line(item)) for item in capture.elsewhere or []),
    ]


def _kept_in(capture: CaptureFacts) -> str:
    if capture.damaged:
        return one_line(f"{capture.kept_in}, but damaged there: {capture.damaged} (see 'waypoint verify')")
    return _KEPT_IN.get(capture.kept_in or "", "")


def _layer(layer: Mapping[str, object]) -> str:
    """The facts about a layer in words. Fields that this program does not know are shown with their names."""
    facts = dict(layer)
    stored = facts.pop("size_bytes", None)
    programs = facts.pop("programs", None)
    words = [size(stored)] if isinstance(stored, int) else []
    if programs and isinstance(programs, list):
        words.append(_list(programs))
    for name, value in facts.items():
        if value is not None and value != []:
            words.append(f"{name.replace('_', ' ')} {_list(value) if isinstance(value, list) else value}")
    return ", ".join(words) or "kept"


def _list(values: Sequence[object]) -> str:
    return " ".join(one_line(str(value)) for value in values)
