"""What may follow the words of an unfinished command line, by the table of verbs. Has no input or output.

The answer at TAB, for the shells' completion functions (waypoint/setup/machine/completion.py): its first line is what
the shell itself is to look for (`files`, `folders`, `commands`, `users`, `groups`, or nothing); each further line is a
word, a tab, and help.
"""

from waypoint.model.verbs import Argument, Group, Option, Verb
from waypoint.model.verbs.table import INSIDE, WAYPOINT, first_sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KINDS = {
    "BRANCH": "branches",
    "OLD": "branches",
    "NAME": "names",
    "DIR": "folders",
    "HOST:PATH[:ro]": "files",
    "USER": "users",
    "GROUP": "groups",
    "CMD": "commands",
    "ARGV": "commands",
    "SHELL": "commands",
    "FILE": "files",
    "DEST": "files",
    "KIND=PATH": "files",
    "SRC": "files",
    "DST": "files",
    "NAME:PATH": "names",
    "PATH": "files",
    "OTHER": "names",
    **dict.fromkeys(
        (
            "N",
            "S",
            "AGE",
            "KIND",
            "MSG",
            "NEW",
            "PREFIX",
            "NAME=VALUE",
            "SIZE",
            "LIST",
            "[IP:]HOST:INNER[/udp]",
            "PROFILE",
            "",
        ),
        "",
    ),
}
"""What the values of an option or argument are, by its metavar; "" for what only the user can know. `names` are
branches and checkpoints; `commands` the words of a command line: a program, then files.
"""

_NEW_NAMES = {("checkpoint", "name"), ("stop", "checkpoint"), ("fork", "branches")}
"""Options and arguments, by their verb and name, whose value is a name that does not exist yet."""

_OF_THE_DAEMON = ("names", "branches", "live branches")
"""The kinds that only the daemon can tell."""

_OF_LIVE = {"attach", "doctor", "exec", "run", "logs", "stop", "checkpoint", "profile test"}
"""Verbs whose BRANCH must be live."""


class Offer:
    """What may stand in the place of the last word.

    `words`: whole words with their help ("" if there is none). `kind`: what else may, as in KINDS; besides
    `live branches`. `before`: how each word that is found by its kind begins (`--base=`). `typed`: what the user has
    typed of it behind that. `home`: the value of `--home`, if it was given.
    """

    __slots__ = ("before", "home", "kind", "typed", "words")

    def __init__(self, typed: str) -> None:
        self.words: list[tuple[str, str]] = []
        self.kind = ""
        self.before = ""
        self.typed = typed
        self.home: str | None = None

    @property
    def needs_names(self) -> bool:
        """Whether the names that `answer` takes are of any use."""
        return self.kind in _OF_THE_DAEMON

    def answer(self, names: "Iterable[str]") -> str:
        """The answer at TAB. `names`: those of this kind."""
        found = [f"{word}\t{text}" for word, text in self.words]
        if self.needs_names:
            found += [f"{self.before}{name}\t" for name in names if name.startswith(self.typed)]
        return "".join(f"{line}\n" for line in ["" if self.needs_names else self.kind, *found])


def offered_inside(words: "Sequence[str]") -> Offer:
    """As `offered`, of the verbs and options that a session's own processes may use."""
    return offered(words, _inside())


def _inside() -> Group:
    members: dict[str, list[Verb]] = {}
    for verb, flags in INSIDE.items():
        options = tuple(option for option in verb.options if option.flags[-1] in flags)
        one = Verb(verb.name, options, verb.help, "", arguments=verb.arguments)
        members.setdefault(verb.name.split()[0], []).append(one)
    groups = (
        Group(name, (), found[0].help, "", tuple(found)) if found[0].name != name else found[0]
        for name, found in members.items()
    )
    return Group("", (), "", "", tuple(groups))


def offered(words: "Sequence[str]", group: Verb = WAYPOINT) -> Offer:
    """What may stand in the place of the last of `words`, the words behind `waypoint`. Never fails."""
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
    """The member of `group` that is named, and the words behind its name. None if none is named."""
    place = 0
    while place < len(done):
        option, value, place = _option_at(group, done, place)
        if option is None:
            named = f"{group.name} {done[place - 1]}".strip()
            found = next((member for member in group.members if member.name == named), None)
            return None if found is None else (found, done[place:])
        _note_home(option, value, offer)
    return None


def _option_at(verb: Verb, done: list[str], place: int) -> tuple[Option | None, str | None, int]:
    """The option at `place` (None: that is no option), its value if it has one, and the place behind both."""
    word = done[place]
    flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
    option = verb.by_flag.get(flag)
    if option is None or option.kind == "flag" or equals or value:
        return option, value, place + 1
    return option, done[place + 1] if place + 1 < len(done) else None, place + 2


def _offer_members(group: Group, done: list[str], offer: Offer) -> None:
    open_option = _open_option(group, done)
    if open_option is not None or offer.typed.startswith("-"):
        _offer_options(group, done, open_option, offer)
    elif not any(_option_at(group, done, place)[0] is None for place in _starts(group, done)):
        found = [(member.name.rpartition(" ")[2], first_sentence(member)) for member in group.members]
        offer.words = [(word, text) for word, text in found if word.startswith(offer.typed)]


def _offer_for(verb: Verb, done: list[str], offer: Offer) -> None:
    """Offer what may follow the name of a verb without members and the words `done`."""
    arguments: list[str] = []
    for place in _starts(verb, done):
        option, value, _ = _option_at(verb, done, place)
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
    """The places of the words that begin an option or are an argument."""
    found, place = [], 0
    while place < len(done):
        found.append(place)
        place = _option_at(verb, done, place)[2]
    return found


def _open_option(verb: Verb, done: list[str]) -> Option | None:
    """The option that the last word of `done` is, if its value must follow."""
    starts = _starts(verb, done)
    option, value, place = _option_at(verb, done, starts[-1]) if starts else (None, None, 0)
    return option if place > len(done) and value is None else None


def _argument_at(verb: Verb, place: int) -> Argument | None:
    if place < len(verb.arguments):
        return verb.arguments[place]
    return verb.arguments[-1] if verb.arguments and verb.arguments[-1].many else None


def _offer_options(verb: Verb, done: list[str], open_option: Option | None, offer: Offer) -> None:
    """Offer the value of `open_option`; if that is None, the value of the option that is being typed, or options."""
    flag, equals, value = offer.typed.partition("=")
    if open_option is None and equals and flag in verb.by_flag:
        open_option, offer.before, offer.typed = verb.by_flag[flag], f"{flag}=", value
    if open_option is not None:
        found = [(choice, "") for choice in open_option.choices]
        offer.kind = _kind(verb, open_option.name, open_option.metavar)
    else:
        given = {_option_at(verb, done, place)[0] for place in _starts(verb, done)}
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
