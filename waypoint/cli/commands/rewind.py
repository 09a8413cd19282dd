"""`waypoint rewind`."""

import dataclasses
import os
import tempfile

from waypoint.cli.caller import branch_of
from waypoint.cli.output import note, print_json, print_lines, wants_colour, warn, warn_lines
from waypoint.client import rewinding
from waypoint.client.sdk import Client, Session
from waypoint.model.errors import Failed, UnknownName, UsageProblem
from waypoint.model.facts import PointFacts
from waypoint.model.outcomes import degraded_lines, replaced_lines
from waypoint.model.rendering import points_table
from waypoint.model.verbs import Given

_KIND = "conversation"
_MOST_BYTES = 256 << 20
_COPY = 'if [ -e "$1" ]; then cp -p -- "$1" "$2" || exit; fi; cat > "$1"'


def run(given: Given) -> int:
    client, branch = Client(given.text("home")), branch_of(given)
    session, number, as_json = client.session(branch), given.number("number"), given.flag("json")
    is_list = given.flag("list")
    points = session.points()
    if is_list or (as_json and number is None):
        if as_json:
            print_json(points)
        elif points:
            print_lines(points_table(points, coloured=wants_colour()))
        else:
            note(f"no points on {branch} yet: 'waypoint point' and 'waypoint checkpoint' make them")
        return 0
    if number is None:
        point = _choose(branch, points)
        if point is None:
            return 1
    elif number > len(points):
        said = f"{branch} has {len(points)} {'point' if len(points) == 1 else 'points'}"
        raise UnknownName(
            "rewind", f"branch {branch} by {number}", said, f"see them: waypoint rewind -b {branch} --list"
        )
    else:
        point = points[number - 1]
    return _rewind(given, client, session, point)


def _choose(branch: str, points: list[PointFacts]) -> PointFacts | None:
    if not (os.isatty(0) and os.isatty(2)):
        said, step = (
            "stdin or stderr is not a terminal",
            f"give the number of a point: waypoint rewind -b {branch} -n 1",
        )
        raise UsageProblem("choose a point of", f"branch {branch}", said, step)
    if not points:
        said = "it has no points yet"
        raise UnknownName("rewind", f"branch {branch}", said, "'waypoint point' and 'waypoint checkpoint' make them")
    from waypoint.cli.picker import pick

    return pick(branch, points)


def _rewind(given: Given, client: Client, session: Session, point: PointFacts) -> int:
    only, facts = given.text("only"), None
    told = point.conversation
    if only == _KIND and told is None:
        said = "no conversation was noted at this point"
        raise UnknownName("rewind", f"the conversation of {session.branch}", said, "leave out --only conversation")
    if only != _KIND:
        facts = session.restore(
            point.capture,
            only="files" if only == "files" else None,
            lose_processes=given.flag("lose_processes"),
        )
    if not given.flag("json"):  # now, since the conversation may fail
        print_lines([point.label or point.name or point.capture])
        if facts is not None:
            warn_lines(replaced_lines(dataclasses.asdict(facts)))
            warn_lines(degraded_lines(dataclasses.asdict(facts)))
    brought, aside = False, None
    if told is not None and only != "files" and not (told["inside"] and only is None):
        brought = True
        aside = _bring_inside(client, session, point) if told["inside"] else _bring_back(client, point)
    if given.flag("json"):
        done = {"point": point, "session": facts, "conversation": {"replaced": aside} if brought else None}
        print_json(done)
        return 0
    if aside is not None:
        warn("the conversation from before is kept", [aside])
    return 0


def _bring_back(client: Client, point: PointFacts) -> str | None:
    """Bring back the conversation of an agent outside of the session. Returns where the replaced file is kept."""
    told = point.conversation
    assert told is not None
    with tempfile.TemporaryDirectory(prefix="waypoint-rewind-") as folder:
        kept: str | None = f"{folder}/{_KIND}"
        try:
            client.history.get_layer(point.capture, _KIND, f"{folder}/{_KIND}")
        except UnknownName:
            kept = None
        try:
            return rewinding.put_back(told, kept)
        except OSError as error:
            raise Failed(
                "bring back", told["path"], error.strerror or str(error), "repair this, and try again"
            ) from error


def _bring_inside(client: Client, session: Session, point: PointFacts) -> str:
    """Bring back the conversation of an agent in the session. Returns where the replaced file is kept."""
    told = point.conversation
    assert told is not None
    path = told["path"]
    content = bytearray()
    for piece in client.files(point.capture).iter_content(path):
        content += piece
        if len(content) > _MOST_BYTES:  # the session chooses the file
            said = f"it has more than {_MOST_BYTES >> 20} MiB"
            raise Failed("bring back", f"{path} in the session", said, "rewind all: leave out --only conversation")
    aside = f"{path}.before-rewind"
    done = session.run("sh", "-c", _COPY, "sh", path, aside, stdin=bytes(content))
    if done.exit != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit status {done.exit}"
        raise Failed("bring back", f"{path} in the session", said, "repair this, and try again")
    return aside
