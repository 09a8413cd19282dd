"""`waypoint show`."""

from waypoint.cli.output import print_json, print_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName, WaypointError, one_line
from waypoint.model.facts import CaptureFacts
from waypoint.model.plainjson import fields
from waypoint.model.rendering import age, base, capture_facts, headed, limits
from waypoint.model.session_facts import SessionFacts
from waypoint.model.verbs import Given

_CALLS = {
    "default": "without namespaces and mounts",
    "userns": "with namespaces and mounts (--allow userns)",
    "none": "all of the kernel's",
}


def run(given: Given) -> int:
    client, name, as_json = Client(given.text("home")), given.required("name"), given.flag("json")
    try:
        shown = client.history.show(name)
    except UnknownName:
        only_live = _live(client, name)
        if only_live is None:
            raise
        if as_json:
            print_json(_uncaptured(only_live))
        else:
            print_lines(headed([*_of_uncaptured(only_live), *_of_live(only_live)]))
        return 0
    is_name = name == shown.branch or name in shown.names  # otherwise an id
    live = _live(client, name) if is_name else None
    if as_json:
        print_json(fields(shown) | {"session": live})
    else:
        print_lines(headed([*capture_facts(shown), *(_of_live(live) if live else [])]))
    return 0


def _uncaptured(live: SessionFacts) -> dict[str, object]:
    """What `--json` prints about a branch without captures: the fields of a capture, as far as they are known."""
    known = {name: getattr(live, name) for name in ("branch", "created", "base", "user", "cwd", "limits")}
    empty: dict[str, object] = {"names": [live.branch], "parents": [], "degraded": [], "layers": {}, "removed": False}
    return dict.fromkeys(CaptureFacts.__dataclass_fields__) | empty | known | {"session": live}


def _live(client: Client, name: str) -> SessionFacts | None:
    """Return the running session on the branch `name`; None if there is none."""
    try:
        return client.session(name).refresh()
    except WaypointError:
        return None


def _of_uncaptured(live: SessionFacts) -> list[tuple[str, str]]:
    """Headings and values of a session without captures."""
    return [
        ("branch", live.branch),
        ("capture", "none yet"),
        ("state", live.state),
        ("created", f"{live.created} ({age(live.created)} ago)"),
        ("base", base(live.base)),
        ("user", live.user or ""),
        ("folder", one_line(live.cwd or "")),
        ("network", live.net or ""),
        *(("shared", one_line(line)) for line in live.shared or []),
    ]


def _of_live(found: SessionFacts) -> list[tuple[str, str]]:
    """Headings and values of what a running session lacks and is limited to."""
    why = found.why_host_ids
    ids = [("ids", f"the machine's: {one_line(why)}")] if why else []
    calls = [_CALLS[found.seccomp]] if found.seccomp else []
    calls += [one_line(found.why_no_seccomp)] if found.why_no_seccomp else []
    left_out = (("left out", one_line(one["text"])) for one in found.left_out or [])
    held = [("limits", limits(found.limits))] if found.limits else []
    unlimited = [("not enforced", one_line(one["text"])) for one in found.unlimited or []]
    network = [("reaches", one_line(", ".join(found.allow_net)))] if found.allow_net else []
    network = [("reaches", f"nothing outside: {one_line(found.no_way_out)}")] if found.no_way_out else network
    return [*left_out, *network, *ids, ("system calls", ": ".join(calls)), *held, *unlimited]
