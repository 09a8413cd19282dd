"""`waypoint events`."""

from datetime import datetime

from waypoint.cli.output import json_line, print_json_line, print_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import one_line
from waypoint.model.rendering import progress
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    for event in Client(given.text("home")).events(follow=given.flag("follow")):
        if given.flag("json"):
            print_json_line(event)
        elif event["kind"] != "begin":
            print_lines([_line(event)])
    return 0


def _line(event: dict[str, object]) -> str:
    when = datetime.fromisoformat(str(event.get("at"))).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{when}  {event['kind']!s:<9}  {one_line(_park_words(event) if event['kind'] == 'park' else _words(event))}"


def _park_words(event: dict[str, object]) -> str:
    tier = f", tier {event['tier']}" if event["tier"] else ""
    said = f": {event['said']}" if event["said"] else ""
    return f"{event['branch']} {event['change']} ({event['why']}){tier}{said}"


def _words(event: dict[str, object]) -> str:
    match event:
        case {"kind": "operation", "number": number, "verb": verb, "names": list(names)}:
            return f"{number} {verb}: {', '.join(map(str, names))}"
        case {"kind": "session", "change": change, "branch": branch, "session": session, "pid": pid}:
            return f"{branch} {change}: session {session}, pid {pid}"
        case {"kind": "job", "change": change, "job": dict(job)}:
            done = progress(job.get("progress"), ", ") if change != "ended" else ""
            return f"{job.get('kind')} {job.get('id')} {job.get('state')}{done}"
        case {"kind": "lost", "count": count}:
            return f"{count} events are no longer kept"
        case {"kind": "restarted"}:
            return "a new daemon has started"
        case _:
            return json_line(event)
