"""`waypoint events`."""

from datetime import datetime

from waypoint.cli.output import json_line, print_json_line, print_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import one_line
from waypoint.model.rendering import size
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
    return f"{when}  {event['kind']!s:<9}  {one_line(_words(event))}"


def _words(event: dict[str, object]) -> str:
    match event:
        case {"kind": "operation", "number": number, "verb": verb, "names": list(names)}:
            return f"{number} {verb}: {', '.join(map(str, names))}"
        case {"kind": "session", "change": change, "branch": branch, "session": session, "pid": pid}:
            return f"{branch} {change}: session {session}, pid {pid}"
        case {"kind": "job", "change": change, "job": dict(job)}:
            return f"{job.get('kind')} {job.get('id')} {job.get('state') if change == 'ended' else _progress(job)}"
        case {"kind": "lost", "count": count}:
            return f"{count} events are no longer kept"
        case {"kind": "restarted"}:
            return "a new daemon has started"
        case _:
            return json_line(event)


def _progress(job: dict[str, object]) -> str:
    """For example `running, 3 of 8 items, 1.4 MiB`."""
    words = [str(job.get("state"))]
    match job.get("progress"):
        case {"items": int(items), "items_total": total} if items:
            words.append(f"{items} items" if total is None else f"{items} of {total} items")
    match job.get("progress"):
        case {"bytes": int(done), "bytes_total": int(total)}:
            words.append(f"{size(done)} of {size(total)}")
        case {"bytes": int(done)} if done:
            words.append(size(done))
    return ", ".join(words)
