"""`waypoint __complete WORDS`: what the completion functions of bash and zsh ask at TAB (model/verbs/completion.py).

WORDS are the words behind `waypoint` up to the cursor.

A TAB must not be felt: client/wire.py says what may be imported here.
"""

from waypoint.cli.caller import names_of
from waypoint.cli.output import write_all
from waypoint.model.verbs.completion import offered


def run(words: list[str]) -> int:
    """Print what may stand in the place of the last of `words`. Returns the exit status, 0.

    Names are asked of a running daemon. If no daemon runs, or this user may not talk to it, no names are offered: no
    daemon is started, and no error is printed.
    """
    offer = offered(words)
    answer = offer.answer(names_of(offer.home, offer.kind) if offer.needs_names else ())
    write_all(1, memoryview(answer.encode(errors="replace")))
    return 0
