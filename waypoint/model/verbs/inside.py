"""Parsing the requests of a session's own processes by the table of verbs."""

from collections.abc import Sequence

from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import ArgumentParser, Given, Unclear, Verb, asks_for_json
from waypoint.model.verbs.help import of_all, of_verb
from waypoint.model.verbs.table import INSIDE

MOST = 256  # of forks at once, of lines of the log
_BY_NAME = {verb.name: verb for verb in INSIDE}
_HELP = ("--help", "-h")
_OVERVIEW = """Inside a session these commands work on the session's own branch, and see its history only.

Everything here is a copy: what is done in the session does not happen to the machine. 'exit' ends the session and keeps
its files; Ctrl-] d leaves it running. All other commands are for outside."""


class HelpWanted(Exception):
    """The words ask for help, or say nothing. `text`: the help."""

    def __init__(self, text: str, exit_code: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def parse(words: Sequence[str]) -> tuple[Verb, Given]:
    """The verb in `words`, and its parameters. Only the verbs and options in `INSIDE` may be given.

    Raises HelpWanted, UsageProblem if the words make no sense.
    """
    verb, rest = _find(words)
    if verb is None:
        if not words or words[0] in _HELP:
            raise HelpWanted(of_all(_OVERVIEW, list(INSIDE)), 0 if words else UsageProblem.exit_code)
        raise _unknown(words)
    by_flag = {flag: verb.by_flag[flag] for flag in INSIDE[verb]}
    try:
        return verb, ArgumentParser(by_flag, has_words=False, most=MOST, takes_dashes=True).read(verb, rest)
    except Unclear as error:
        if error.on in _HELP:
            raise HelpWanted(of_verb(verb, INSIDE[verb])) from error
        next_step = f"waypoint {verb.name} --help tells what it takes inside a session"
        raise UsageProblem("understand", f"waypoint {verb.name} {error.on}".rstrip(), error.said, next_step) from error


def wants_json(words: Sequence[str]) -> bool:
    """Whether the answer, also an error, is to be one JSON value."""
    verb, rest = _find(words)
    return asks_for_json(verb, rest)


def _find(words: Sequence[str]) -> tuple[Verb | None, list[str]]:
    """The verb of one word or of two, None if there is none, and the words behind it."""
    for count in (2, 1):
        verb = _BY_NAME.get(" ".join(words[:count])) if len(words) >= count else None
        if verb is not None:
            return verb, list(words[count:])
    return None, list(words[1:])


def _unknown(words: Sequence[str]) -> UsageProblem:
    *others, last = _BY_NAME
    said = f"inside a session there are {', '.join(others)} and {last}"
    return UsageProblem("understand", f"waypoint {words[0]}", said, "waypoint --help; other commands work outside")
