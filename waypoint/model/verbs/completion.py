"""Completion of an unfinished command line from the table of verbs. Does no I/O.

The answer for the shells' completion functions (waypoint/setup/machine/completion.py): the first line is the kind of
word that the shell itself has to complete (`files`, `folders`, `commands`, `users`, `groups`, or nothing); each further
line is a word, a tab, and help.
"""

from waypoint.model.verbs import Argument, Option, Verb
from waypoint.model.verbs.table import INSIDE, WAYPOINT, Group, first_sentence, option_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KINDS = {
    "BRANCH": "branches",
    "OLD": "branches",
    "NAME": "names",
    "OTHER": "names",
    "DIR": "folders",
    "BASE": "bases",
    "BASE|DIR": "bases|folders",
    "PROFILE": "profiles",
    "HOST:PATH[:ro]": "files",
    **dict.fromkeys(("DEST", "FILE", "KEY", "PATH", "SOURCE"), "files"),
    "USER": "users",
    "GROUP": "groups",
    "CMD": "commands",
    "ARGV": "commands",
    "SHELL": "commands",
    **dict.fromkeys(
        (
            "N",
            "PORT",
            "[ADDR:]HOST:SESSION",
            "S",
            "AGE",
            "AGENT",
            "LOG",
            "MSG",
            "NEW",
            "PREFIX",
            "NAME=VALUE",
            "KIND=PATH",
            "KIND",
            "SIZE",
            "TEXT",
            "LIST",
            "NAME:PATH",
            "",
        ),
        "",
    ),
}
"""The kind of the values of an option or argument, by its metavar; "" for values that only the user knows. `names` are
branches and checkpoints; `commands` are the words of a command: a program, then files; `bases|folders` are both.
"""

_NEW_NAMES = {("checkpoint", "name"), ("stop", "checkpoint"), ("fork", "branches"), ("base create", "name")}
"""Options and arguments, by verb and name, whose value is a name that does not exist yet."""

_OF_THE_DAEMON = ("names", "branches", "live branches", "bases", "profiles")
"""The kinds whose words must be asked from the daemon."""

_OF_LIVE = {"attach", "doctor", "exec", "run", "logs", "port", "stop", "checkpoint"}
"""Verbs whose BRANCH must be live."""


class Offer:
    """The completions of the last word.

    `words`: whole words with their help ("" if there is none). `kind`: the kind of further words, as in KINDS, or
    `live branches`. `before`: the beginning of each word of this kind (`--base=`). `typed`: what the user has typed
    after that. `home`: the value of `--home`, if it was given.
    """

    __slots__ = ("before", "home", "kind", "typed", "words")

    def __init__(self, typed: str) -> None:
        self.words: list[tuple[str, str]] = []
        self.kind = ""
        self.before = ""
        self.typed = typed
        self.home: str | None = None

    @property
    def asked(self) -> str:
        """The kind of words that must be asked from the daemon; "" for none."""
        kind = self.kind.partition("|")[0]
        return kind if kind in _OF_THE_DAEMON else ""

    def answer(self, names: "Iterable[str]") -> str:
        """Return the text for the shell's completion function. `names`: all existing names of the kind `self.asked`."""
        found = [f"{word}\t{text}" for word, text in self.words]
        if self.asked:
            found += [f"{self.before}{name}\t" for name in names if name.startswith(self.typed)]
        return "".join(f"{line}\n" for line in [self.kind.partition("|")[2] if self.asked else self.kind, *found])


def offered_inside(words: "Sequence[str]") -> Offer:
    """Like `offered`, with the verbs and options that work inside a session."""
    return offered(words, _inside())


def _inside() -> Group:
    members: dict[str, list[Verb]] = {}
    for verb in INSIDE:
        members.setdefault(verb.name.split()[0], []).append(verb)
    groups = (
        Group(name, (), found[0].help, "", tuple(found)) if found[0].name != name else found[0]
        for name, found in members.items()
    )
    return Group("", (), "", "", tuple(groups))


def offered(words: "Sequence[str]", group: Verb = WAYPOINT) -> Offer:
    """Return the completions of the last of `words`, the words after `waypoint`. Never fails."""
    *done, typed = words or [""]
    offer = Offer(typed)
    while isinstance(group, Group):
        member = _first_word(group, done, offer)
        if member is None:
            _offer_members(group, done, offer)
            return offer
        group, done = member
    _offer_for(group, done, offer)
    return offer


def _first_word(group: Group, done: list[str], offer: Offer) -> tuple[Verb, list[str]] | None:
    """Return the member of `group` that `done` names, and the words after its name; None if it names none."""
    place = 0
    while place < len(done):
        option, value, place = option_at(group, done, place)
        if option is None:
            found = group.by_word.get(done[place - 1])
            return None if found is None else (found, done[place:])
        _note_home(option, value, offer)
    return None


def _offer_members(group: Group, done: list[str], offer: Offer) -> None:
    open_option = _open_option(group, done)
    if open_option is not None or offer.typed.startswith("-"):
        _offer_options(group, done, open_option, offer)
    elif not any(option_at(group, done, place)[0] is None for place in _starts(group, done)):
        found = [(word, first_sentence(member)) for word, member in group.by_word.items()]
        offer.words = [(word, text) for word, text in found if word.startswith(offer.typed)]


def _offer_for(verb: Verb, done: list[str], offer: Offer) -> None:
    """Fill `offer` with the words that may follow the verb, which has no members, and the words `done`."""
    arguments: list[str] = []
    for place in _starts(verb, done):
        option, value, _ = option_at(verb, done, place)
        if option is not None:
            _note_home(option, value, offer)
        elif verb.words and (done[place] == "--" or not verb.arguments):
            offer.kind = "files" if place + (done[place] == "--") < len(done) else "commands"
            return
        elif not done[place].startswith("-"):
            arguments.append(done[place])
    open_option = _open_option(verb, done)
    if open_option is not None or offer.typed.startswith("-"):
        _offer_options(verb, done, open_option, offer)
    elif verb.words and not verb.arguments:
        offer.kind = "commands"
    else:
        argument = _argument_at(verb, len(arguments))
        offer.kind = _kind(verb, argument.name, argument.metavar) if argument is not None else ""


def _starts(verb: Verb, done: list[str]) -> "list[int]":
    """Return the places of the words that begin an option or are an argument."""
    found, place = [], 0
    while place < len(done):
        found.append(place)
        place = option_at(verb, done, place)[2]
    return found


def _open_option(verb: Verb, done: list[str]) -> Option | None:
    """Return the option in the last word of `done`, if the next word must be its value."""
    starts = _starts(verb, done)
    option, value, place = option_at(verb, done, starts[-1]) if starts else (None, None, 0)
    return option if place > len(done) and value is None else None


def _argument_at(verb: Verb, place: int) -> Argument | None:
    if place < len(verb.arguments):
        return verb.arguments[place]
    return verb.arguments[-1] if verb.arguments and verb.arguments[-1].many else None


def _offer_options(verb: Verb, done: list[str], open_option: Option | None, offer: Offer) -> None:
    """Fill `offer` with values of `open_option`. If it is None, with values of the option being typed (`--base=`), or
    with options.
    """
    flag, equals, value = offer.typed.partition("=")
    if open_option is None and equals and flag in verb.by_flag:
        open_option, offer.before, offer.typed = verb.by_flag[flag], f"{flag}=", value
    if open_option is not None:
        found = [(choice, "") for choice in open_option.choices]
        offer.kind = _kind(verb, open_option.name, open_option.metavar)
    else:
        given = {option_at(verb, done, place)[0] for place in _starts(verb, done)}
        left = [option for option in verb.options if option not in given or option.kind == "texts"]
        found = [(option.flags[-1], option.help) for option in left] + [("--help", "Show help.")]
    offer.words = [(offer.before + word, text) for word, text in found if word.startswith(offer.typed)]


def _kind(verb: Verb, name: str, metavar: str) -> str:
    kind = KINDS.get(metavar, "")
    if (verb.name, name) in _NEW_NAMES:
        return ""
    return "live branches" if kind == "branches" and verb.name in _OF_LIVE else kind


def _note_home(option: Option, value: str | None, offer: Offer) -> None:
    if option.name == "home" and value:
        offer.home = value
