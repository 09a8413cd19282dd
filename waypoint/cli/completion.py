"""`waypoint __complete WORDS`: completion for bash and zsh (model/verbs/completion.py). WORDS are the words after
`waypoint`, up to the cursor.

It must be fast: client/wire.py says what may be imported here.
"""

import _signal  # type: ignore[import-not-found, unused-ignore]
import os

from waypoint.cli.output import write_all
from waypoint.client.address import find_home
from waypoint.client.link import ask_running
from waypoint.model.errors import WaypointError
from waypoint.model.verbs.completion import Offer, offered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_COLLECTIONS = ("bases", "profiles")  # the kinds that have a route of their own
ANSWER_S = 1.0  # how long to wait for the names


def run(words: list[str]) -> int:
    """Print the completions of the last of `words`. Returns 0.

    Names come from the running daemon. If no daemon is running, or this user may not use it, no names are offered and
    no error is printed.
    """
    offer = offered(words)
    answer = offer.answer(_names(offer) if offer.asked else ())
    write_all(1, memoryview(answer.encode(errors="replace")))
    return 0


def _names(offer: Offer) -> list[str]:
    collection = offer.asked if offer.asked in _COLLECTIONS else "names"
    _signal.signal(_signal.SIGALRM, _give_up)
    _signal.setitimer(_signal.ITIMER_REAL, ANSWER_S)
    try:
        answer = ask_running(find_home(offer.home and os.path.expanduser(offer.home)), "GET", f"/v1/{collection}")
    except (WaypointError, OSError):
        return []
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
    rows = answer.get(collection) if isinstance(answer, dict) else None
    return [str(row["name"]) for row in rows or () if collection in _COLLECTIONS or _is_meant(row, offer.asked)]


def _is_meant(row: dict[str, object], kind: str) -> bool:
    return kind == "names" or (row["kind"] == "branch" and (kind == "branches" or row["live"] is True))


def _give_up(number: int, frame: object) -> "NoReturn":
    raise TimeoutError
