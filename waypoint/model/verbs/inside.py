"""Parses commands that were typed inside a session."""

from collections.abc import Sequence

from waypoint.model import verbs
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import HELP_FLAGS, Given, HelpRequested, Verb, asks_for_json, did_you_mean, wrong_usage
from waypoint.model.verbs.help import of_all, of_verb
from waypoint.model.verbs.table import INSIDE

MOST = 256  # forks at once, lines of the log
_BY_NAME = {verb.name: verb for verb in INSIDE}
_OVERVIEW = """Inside a session these commands work on the session's own branch, and see only its history.

Everything here is a copy: what you do in the session does not change the machine. 'exit' ends the session and keeps its
files; Ctrl-] d detaches and leaves it running. All other commands work outside of sessions."""


class HelpWanted(Exception):
    """The words ask for help, or there are none. `text`: the help."""

    def __init__(self, text: str, exit_code: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def parse(words: Sequence[str]) -> tuple[Verb, Given]:
    """Return the verb in `words`, one of `INSIDE`, and its parameters. Raises HelpWanted, UsageProblem."""
    verb, rest = _find(words)
    if verb is None:
        if not words or words[0] in HELP_FLAGS:
            raise HelpWanted(of_all(_OVERVIEW, INSIDE), 0 if words else UsageProblem.exit_code)
        raise _unknown(words)
    if "--" in rest:
        raise wrong_usage(verb, "--", "a command to run cannot be given inside a session")
    try:
        return verb, verbs.parse(verb, rest, MOST)
    except HelpRequested as request:
        raise HelpWanted(of_verb(verb)) from request


def has(words: Sequence[str]) -> bool:
    """Return whether the first words are a verb that works inside a session."""
    return _find(words)[0] is not None


def wants_json(words: Sequence[str]) -> bool:
    """Return whether the answer must be one JSON value, even if it is an error."""
    verb, rest = _find(words)
    return asks_for_json(verb, rest)


def _find(words: Sequence[str]) -> tuple[Verb | None, list[str]]:
    """Return the verb in the first one or two words (None: there is no such verb), and the words after it."""
    for count in (2, 1):
        verb = _BY_NAME.get(" ".join(words[:count])) if len(words) >= count else None
        if verb is not None:
            return verb, list(words[count:])
    return None, list(words[1:])


def _unknown(words: Sequence[str]) -> UsageProblem:
    *others, last = _BY_NAME
    said = f"inside a session the commands are {', '.join(others)} and {last}{did_you_mean(words[0], _BY_NAME)}"
    return UsageProblem(
        "understand", f"waypoint {words[0]}", said, "waypoint --help; run other commands outside of the session"
    )
