"""The verbs of Waypoint's command language: what a verb is made of, and the small parser that reads a command by it.

`fast` and `table` have the verbs; `inside` parses the requests of a session's own processes. This file imports nothing:
the command line's fast path loads it, and importing `typing` alone would take 10 ms.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    Kind = Literal["flag", "text", "texts", "choice", "number", "seconds", "positive seconds", "size", "amount"]
    Value = str | int | float | bool | list[str] | None


COMPLETE = "__complete"  # the word with which the shells' completion functions ask; it is no verb
MAX_NUMBER = (1 << 63) - 1  # the largest one that names.db can hold (sqlite.org/datatype3.html)
MAX_SECONDS = 10**9  # some 30 years: far below what the kernel's timers take
MAX_FORKS = 256  # at once
LIMIT_BOUNDS = {  # with less a session could not begin, or not come back; the kernel takes no more
    "memory": ("64M", "8388607T"),
    "cpus": ("0.01", str(MAX_SECONDS)),
    "pids": ("64", str(4 << 20)),  # PID_MAX_LIMIT
    "disk": ("16M", "8388607T"),
}
"""From where to where the limits of a session may be, as they are typed."""


class Option:
    """One option. `flags`: all its spellings, the long one last. `choices`: the values of an option of kind "choice".

    An option of kind "texts" may be given several times. A "number" is a whole number from 1 to MAX_NUMBER, a "size" is
    one of bytes (`parse_size`), an "amount" a decimal number above 0. `bounds`: in words, from where to where its value
    may be, if the one who is asked takes less than that.
    """

    __slots__ = ("bounds", "choices", "flags", "help", "kind", "metavar", "name")

    def __init__(
        self,
        flags: tuple[str, ...],
        kind: "Kind",
        text: str,
        metavar: str = "",
        choices: tuple[str, ...] = (),
        bounds: str = "",
    ) -> None:
        self.bounds = bounds
        self.choices = choices
        self.flags = flags
        self.kind = kind
        self.help = text
        self.metavar = metavar
        self.name = flags[-1].lstrip("-").replace("-", "_")


class Argument:
    """One argument. With `many` it takes all arguments that are left, and must be a verb's last. `required`: at least
    one must be given.
    """

    __slots__ = ("is_number", "many", "metavar", "name", "required")

    def __init__(
        self, name: str, metavar: str, *, required: bool = True, many: bool = False, is_number: bool = False
    ) -> None:
        self.name = name
        self.metavar = metavar
        self.required = required
        self.many = many
        self.is_number = is_number

    @property
    def usage(self) -> str:
        """The argument as help shows it: `NAME`, `[NAME]`, `NAME...`, `[NAME]...`."""
        shown = self.metavar if self.required else f"[{self.metavar}]"
        return f"{shown}..." if self.many else shown


class Verb:
    """One verb of the command line.

    Arguments and options may be given in any order. A verb with `words` (their name in help) also takes the words of a
    command line to be run. If the verb has arguments, these words follow `--` and may be missing. If it has none, at
    least one word is needed, and no word after the first of them, or after `--`, is an option of the verb.

    `name`: as it is typed, such as `branch list` for a member of a group. `text` and `epilog`: the text of help above
    and below the options.
    """

    __slots__ = ("arguments", "by_flag", "epilog", "help", "name", "options", "words")

    def __init__(
        self,
        name: str,
        options: tuple[Option, ...],
        text: str,
        epilog: str,
        *,
        arguments: tuple[Argument, ...] = (),
        words: str = "",
    ) -> None:
        self.name = name
        self.options = options
        self.words = words
        self.arguments = arguments
        self.help = text
        self.epilog = epilog
        self.by_flag = {flag: option for option in options for flag in option.flags}


class Group(Verb):
    """A verb with verbs below it. `acts`: whether it does something when none of its members is named."""

    __slots__ = ("acts", "members")

    def __init__(
        self,
        name: str,
        options: tuple[Option, ...],
        text: str,
        epilog: str,
        members: tuple[Verb, ...],
        *,
        acts: bool = False,
    ) -> None:
        super().__init__(name, options, text, epilog)
        self.acts = acts
        self.members = members


class Given(dict[str, "Value"]):
    """The parameters of one command, by name, as any of the parsers returns them. A parameter that was not given is
    None, False (a flag) or [] (several texts).
    """

    def text(self, name: str) -> str | None:
        value = self[name]
        return value if isinstance(value, str) else None

    def required(self, name: str) -> str:
        """A text that the parser requires, so that it is never None."""
        return str(self[name])

    def flag(self, name: str) -> bool:
        return self[name] is True

    def number(self, name: str) -> int | None:
        value = self[name]
        return value if isinstance(value, int) else None

    def texts(self, name: str) -> list[str]:
        value = self[name]
        return value if isinstance(value, list) else []


class Unclear(Exception):
    """What the small parser does not understand. `on`: the word; "" if there are too few, or too many. `said`: why."""

    def __init__(self, on: str, said: str) -> None:
        super().__init__(on, said)
        self.on = on
        self.said = said


def parse(verb: Verb, argv: "Sequence[str]") -> Given | None:
    """The parameters in `argv`, the words behind the verb. None if `argv` asks for help or is wrong: click then reads
    it again, and says so to the user.
    """
    try:
        return ArgumentParser(verb.by_flag, has_words=bool(verb.words)).read(verb, argv)
    except Unclear:
        return None


class ArgumentParser:
    """Reads the words behind a verb."""

    def __init__(
        self, by_flag: "Mapping[str, Option]", *, has_words: bool, most: int = MAX_NUMBER, takes_dashes: bool = False
    ) -> None:
        """`by_flag`: the options that may be given. `has_words`: whether `--` may be given. `most`: the largest value
        of a number. `takes_dashes`: whether the value of an option may begin with a dash (but `--`).
        """
        self._by_flag = by_flag
        self._has_words = has_words
        self._most = most
        self._takes_dashes = takes_dashes

    def read(self, verb: Verb, argv: "Sequence[str]") -> Given:
        """The parameters of `verb` in the words `argv`. Raises Unclear."""
        found = Given({option.name: _unset(option) for option in verb.options})
        rest = list(argv)
        arguments: list[str] = []
        while rest:
            word = rest.pop(0)
            if word == "--" and self._has_words:
                break
            if word.startswith("-") and word != "-":
                self._take(found, word, rest)
            elif verb.words and not verb.arguments:
                rest.insert(0, word)
                break
            else:
                arguments.append(word)
        if verb.words:
            found["words"] = rest
            if not rest and not verb.arguments:
                raise Unclear("", f"no {verb.words} was given")
        self._assign(verb, found, arguments)
        return found

    def _take(self, found: Given, word: str, rest: list[str]) -> None:
        """Note the option, or the short options, of one word in `found`; takes a value that it needs from `rest`."""
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            option = self._by_flag.get(flag)
            if option is None or (option.kind == "flag" and equals):
                raise Unclear(word, "it takes no such option here")
            self._note(found, option, word, value if equals else None, rest)
            return
        for place in range(1, len(word)):  # -it is -i -t; -bNAME is -b NAME
            option = self._by_flag.get(f"-{word[place]}")
            if option is None:
                raise Unclear(word, "it takes no such option here")
            self._note(found, option, f"-{word[place]}", word[place + 1 :] or None, rest)
            if option.kind != "flag":
                return

    def _note(self, found: Given, option: Option, word: str, value: str | None, rest: list[str]) -> None:
        if option.kind == "flag":
            found[option.name] = True
            return
        if value is None:
            if not rest or rest[0] == "--" or (rest[0].startswith("-") and not self._takes_dashes):
                raise Unclear(word, "a value is missing")
            value = rest.pop(0)
        if option.kind == "texts":
            found[option.name] = [*found.texts(option.name), value]
        elif option.kind == "number":
            found[option.name] = self._number(word, value, self._most)
        elif option.kind in _MEASURES:
            read, needed = _MEASURES[option.kind]
            found[option.name] = measure = read(value)
            if measure is None:
                raise Unclear(f"{word} {value}", f"{needed} is needed")
        elif option.choices and value not in option.choices:
            raise Unclear(f"{word} {value}", f"it is one of {', '.join(option.choices)}")
        elif option.choices and found[option.name] not in (None, value):
            raise Unclear(f"{word} {value}", f"it is {found[option.name]} as well: give one of them")
        else:
            found[option.name] = value

    def _number(self, word: str, value: str, most: int) -> int:
        number = parse_number(value)
        if number is None or number > most:
            raise Unclear(f"{word} {value}", f"a number from 1 to {most} is needed")
        return number

    def _assign(self, verb: Verb, found: Given, given: list[str]) -> None:
        """Note in `found` what was given for each argument. Raises Unclear."""
        count = len(given)
        for argument in verb.arguments:
            taken, given = (given, []) if argument.many else (given[:1], given[1:])
            if argument.required and not taken:
                break
            first = taken[0] if taken else None
            found[argument.name] = taken if argument.many else first
            if argument.is_number and first is not None:
                found[argument.name] = self._number(argument.metavar, first, MAX_NUMBER)
        else:
            if not given:
                return
        raise Unclear("", _wrong_number(verb, count))


def _wrong_number(verb: Verb, count: int) -> str:
    if not verb.arguments:
        return f"it takes no arguments, {count} were given"
    if len(verb.arguments) == 1 and not verb.arguments[0].many:
        return f"one {verb.arguments[0].metavar} is needed, {count} were given"
    return f"no {verb.arguments[min(count, len(verb.arguments) - 1)].metavar} was given"


def _unset(option: Option) -> "Value":
    if option.kind == "texts":
        return []
    return False if option.kind == "flag" else None


def asks_for_json(verb: Verb | None, argv: "Sequence[str]") -> bool:
    """Whether `argv`, the words behind the verb, has the option `--json`, even if the words make no sense otherwise.
    `verb`: None if there is no such verb.
    """
    is_value = False
    for word in argv:
        if word == "--":
            return False
        if word == "--json":
            return True
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            is_value = verb is not None and _awaits_value(verb, word)
        elif verb is not None and verb.words and not verb.arguments:
            return False  # here begins a command line, with options of its own
    return False


def _awaits_value(verb: Verb, word: str) -> bool:
    """Whether the option in `word`, or the last of its short options, takes the next word as its value."""
    if word.startswith("--"):
        option = verb.by_flag.get(word)
        return option is not None and option.kind != "flag"
    for place in range(1, len(word)):
        option = verb.by_flag.get(f"-{word[place]}")
        if option is None or option.kind != "flag":
            return option is not None and place == len(word) - 1
    return False


def parse_number(text: str) -> int | None:
    """The whole number from 1 to MAX_NUMBER that `text`, which may have digits only, stands for; None if there is
    none.
    """
    digits = text.lstrip("0") if text.isdecimal() and text.isascii() else ""
    if not 0 < len(digits) <= len(str(MAX_NUMBER)):  # int() itself refuses thousands of digits, with an exception
        return None
    number = int(digits)
    return number if number <= MAX_NUMBER else None


def parse_seconds(text: str) -> float | None:
    """The decimal number of seconds, at most MAX_SECONDS, that `text` stands for; None if it is no such number. No
    sign, no exponent, no `inf`.
    """
    whole = text.replace(".", "", 1)
    seconds = float(text) if whole.isdecimal() and whole.isascii() else float("inf")
    return seconds if seconds <= MAX_SECONDS else None


def parse_amount(text: str) -> float | None:
    """The decimal number above 0 that `text` stands for, in the form that `parse_seconds` takes; None if it is none."""
    return parse_seconds(text) or None


_UNIT_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int | None:
    """The bytes that `text` stands for: a decimal number, with K, M, G or T behind it (powers of 1024; also KiB, KB or
    small letters). From 1 to MAX_NUMBER; None if it is no such size.
    """
    number = text.lower()
    for ending in ("ib", "b"):
        if number[-len(ending) - 1 : -len(ending)] in _UNIT_BYTES:
            number = number.removesuffix(ending)
    unit = _UNIT_BYTES.get(number[-1:], 0)
    if not unit:
        return parse_number(text)
    whole = number[:-1].replace(".", "", 1)
    if not whole.isdecimal() or not whole.isascii() or len(whole) > len(str(MAX_NUMBER)):
        return None
    size = int(float(number[:-1]) * unit)
    return size if 0 < size <= MAX_NUMBER else None


_MEASURES: "dict[str, tuple[Callable[[str], int | float | None], str]]" = {
    "seconds": (parse_seconds, "a number of seconds"),
    "positive seconds": (parse_amount, "a number of seconds"),
    "size": (parse_size, "a size, such as 512M or 2G,"),
    "amount": (parse_amount, "a number above 0"),
}
"""By the kind of an option, how its value is read, and what it must be."""
