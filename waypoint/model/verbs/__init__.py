"""The classes that describe Waypoint's command line, and its only parser.

`fast` and `table` define the verbs; `inside` parses commands that were typed inside a session. The fast path (verbs
that must start within milliseconds) loads this file: client/wire.py says what may be imported here.
"""

from waypoint.model.errors import UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Literal

    Kind = Literal["flag", "text", "texts", "choice", "number", "seconds", "positive seconds", "size", "amount"]
    Value = str | int | float | bool | list[str] | None


COMPLETE = "__complete"  # the first word of a request from a shell's completion function; it is no verb
HELP_FLAGS = ("-h", "--help")
MAX_NUMBER = (1 << 63) - 1  # the largest number that names.db can hold (sqlite.org/datatype3.html)
MAX_SECONDS = 10**9  # some 30 years: far below what the kernel's timers take
MAX_FORKS = 256  # at once
LIMIT_BOUNDS = {
    "memory": ("64M", "8388607T"),
    "cpus": ("0.01", str(MAX_SECONDS)),
    "pids": ("64", str(4 << 20)),  # PID_MAX_LIMIT
    "disk": ("16M", "8388607T"),
}
"""The least and the largest value of each limit of a session, by its name in options and requests. A session could not
start, or not be restored, with less; the kernel accepts no more.
"""


class Option:
    """One option of a verb.

    `flags`: all its spellings, the long one last. `choices`: the values of an option of kind "choice". `bounds`: the
    least and the largest value in words, if they differ from those of its kind.

    Kinds: "texts" may be given several times; "number" is a whole number from 1 to MAX_NUMBER; "size" is in bytes (see
    `parse_size`); "amount" is a decimal number above 0.
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

    @property
    def usage(self) -> str:
        """The option as help shows it: `-b, --branch BRANCH`."""
        value = f"[{'|'.join(self.choices)}]" if self.choices else self.metavar
        return f"{', '.join(self.flags)} {value}".rstrip()


class Argument:
    """One argument of a verb. With `many` it takes all remaining words, and must be the last. With `required` at least
    one word must be given.
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
    command to run. If the verb has arguments, these words follow `--` and may be missing. If it has none, at least one
    word is needed, and everything after the first word, or after `--`, belongs to the command.

    `name`: as the user types it, such as `branch list` for a member of a group. `text` and `epilog`: the help above and
    below the options.
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

    @property
    def command(self) -> str:
        return f"waypoint {self.name}".rstrip()

    @property
    def usage(self) -> str:
        """What may follow the command: `[OPTIONS] NAME [BRANCH]... [-- CMD...]`."""
        words = ["[OPTIONS]", *(argument.usage for argument in self.arguments)]
        if self.words:
            words.append(f"[-- {self.words}...]" if self.arguments else f"[--] {self.words}...")
        return " ".join(words)


class Given(dict[str, "Value"]):
    """The parameters of one command, by name. A parameter that was not given is None, False (a flag) or [] (a list)."""

    def text(self, name: str) -> str | None:
        value = self[name]
        return value if isinstance(value, str) else None

    def required(self, name: str) -> str:
        """Return a text that the parser requires, so that it is never None."""
        return str(self[name])

    def flag(self, name: str) -> bool:
        return self[name] is True

    def number(self, name: str) -> int | None:
        value = self[name]
        return value if isinstance(value, int) else None

    def texts(self, name: str) -> list[str]:
        value = self[name]
        return value if isinstance(value, list) else []


class HelpRequested(Exception):
    """The words after `verb` ask for its help."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(verb.name)
        self.verb = verb


def parse(verb: Verb, argv: "Sequence[str]", largest: int = MAX_NUMBER) -> Given:
    """Return the parameters in `argv`, the words after the verb. `largest`: the largest value of an option that is a
    number.

    Raises HelpRequested, UsageProblem.
    """
    try:
        return _Parser(verb, argv, largest).parse()
    except UsageProblem:
        if _has_flag(verb, argv, HELP_FLAGS):
            raise HelpRequested(verb) from None
        raise


class _Parser:
    def __init__(self, verb: Verb, argv: "Sequence[str]", largest: int) -> None:
        self._verb = verb
        self._rest = list(argv)
        self._largest = largest
        self._given = Given({option.name: _unset(option) for option in verb.options})

    def parse(self) -> Given:
        verb, rest = self._verb, self._rest
        arguments: list[str] = []
        while rest and (word := rest.pop(0)) != "--":
            if word.startswith("-") and word != "-":
                self._read_options(word)
            elif verb.words and not verb.arguments:
                rest.insert(0, word)
                break
            else:
                arguments.append(word)
        if verb.words:
            self._given["words"] = rest
            if not rest and not verb.arguments:
                raise self._missing(verb.words)
        else:
            arguments += rest
        self._assign(arguments)
        return self._given

    def _read_options(self, word: str) -> None:
        """Read one long option, or short ones: `-it` is `-i -t`, `-bNAME` is `-b NAME`."""
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            option = self._option(flag)
            if option.kind == "flag" and equals:
                raise wrong_usage(self._verb, flag, "it takes no value")
            self._set(option, flag, value if equals else None)
            return
        for place in range(1, len(word)):
            flag = f"-{word[place]}"
            option = self._option(flag)
            self._set(option, flag, word[place + 1 :] or None)
            if option.kind != "flag":
                return

    def _option(self, flag: str) -> Option:
        option = self._verb.by_flag.get(flag)
        if option is None:
            raise HelpRequested(self._verb) if flag in HELP_FLAGS else no_such_option(self._verb, flag)
        return option

    def _set(self, option: Option, flag: str, value: str | None) -> None:
        if option.kind == "flag":
            self._given[option.name] = True
            return
        if value is None:
            if not self._rest or self._rest[0] == "--":
                raise wrong_usage(self._verb, flag, f"its value is missing: {option.usage}")
            value = self._rest.pop(0)
        if option.kind == "texts":
            self._given[option.name] = [*self._given.texts(option.name), value]
        elif option.kind == "number":
            self._given[option.name] = self._number(
                flag, value, option.bounds or f"1 to {self._largest}", self._largest
            )
        elif option.kind in _MEASURES:
            read, needed, bounds = _MEASURES[option.kind]
            measure = read(value)
            if measure is None:
                bounds = f"from {option.bounds}" if option.bounds else bounds
                raise wrong_usage(self._verb, flag, f"{value!r} is not {needed} ({bounds})")
            self._given[option.name] = measure
        elif option.choices and value not in option.choices:
            raise wrong_usage(self._verb, flag, f"{value!r} is not one of {', '.join(option.choices)}")
        else:
            self._given[option.name] = value

    def _number(self, word: str, value: str, bounds: str, largest: int) -> int:
        number = parse_number(value)
        if number is None or number > largest:
            raise wrong_usage(self._verb, word, f"{value!r} is not a whole number from {bounds}")
        return number

    def _assign(self, words: list[str]) -> None:
        """Assign the words that are not options to the verb's arguments."""
        for argument in self._verb.arguments:
            taken, words = (words, []) if argument.many else (words[:1], words[1:])
            if argument.required and not taken:
                raise self._missing(argument.metavar)
            first = taken[0] if taken else None
            self._given[argument.name] = taken if argument.many else first
            if argument.is_number and first is not None:
                self._given[argument.name] = self._number("", first, f"1 to {MAX_NUMBER}", MAX_NUMBER)
        if words:
            said = f"too many arguments; usage: {self._verb.command} {self._verb.usage}"
            raise wrong_usage(self._verb, " ".join(words), said)

    def _missing(self, metavar: str) -> UsageProblem:
        said = f"{metavar} is missing; usage: {self._verb.command} {self._verb.usage}"
        return wrong_usage(self._verb, "", said)


def wrong_usage(verb: Verb, word: str, said: str) -> UsageProblem:
    """Return the error for `word`, one of the words after `verb`; "": for the words as a whole."""
    return UsageProblem("understand", f"{verb.command} {word}".rstrip(), said, f"{verb.command} --help")


def no_such_option(verb: Verb, flag: str) -> UsageProblem:
    return wrong_usage(verb, flag, f"there is no such option{did_you_mean(flag, verb.by_flag)}")


def did_you_mean(word: str, known: "Iterable[str]") -> str:
    """Return a question that suggests the most similar of the `known` words; "" if none is similar."""
    import difflib  # takes 10 ms to load

    by_letters = {one.lstrip("-"): one for one in known if not (len(one) == 2 and one[0] == "-")}
    similar = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1)
    return f"; did you mean {by_letters[similar[0]]}?" if similar else ""


def _unset(option: Option) -> "Value":
    if option.kind == "texts":
        return []
    return False if option.kind == "flag" else None


def asks_for_json(verb: Verb | None, argv: "Sequence[str]") -> bool:
    """Return whether `argv`, the words after the verb, have the option `--json`, even if the other words are wrong.
    `verb`: None if there is no such verb.
    """
    return _has_flag(verb, argv, ("--json",))


def _has_flag(verb: Verb | None, argv: "Sequence[str]", flags: "Sequence[str]") -> bool:
    """Return whether one of the options `flags`, which take no value, is among the options in `argv`."""
    is_value = False
    for word in argv:
        if word == "--":
            return False
        if word in flags and not is_value:
            return True
        if is_value:
            is_value = False
        elif word.startswith("-") and word != "-":
            is_value = verb is not None and _awaits_value(verb, word)
        elif verb is not None and verb.words and not verb.arguments:
            return False  # a command begins here, with options of its own
    return False


def _awaits_value(verb: Verb, word: str) -> bool:
    """Return whether the option in `word`, or the last of its short options, takes the next word as its value."""
    if word.startswith("--"):
        option = verb.by_flag.get(word)
        return option is not None and option.kind != "flag"
    for place in range(1, len(word)):
        option = verb.by_flag.get(f"-{word[place]}")
        if option is None or option.kind != "flag":
            return option is not None and place == len(word) - 1
    return False


def parse_number(text: str) -> int | None:
    """Return the whole number from 1 to MAX_NUMBER in `text`, which may have digits only; None if it is no such
    number.
    """
    digits = text.lstrip("0") if text.isdecimal() and text.isascii() else ""
    if not 0 < len(digits) <= len(str(MAX_NUMBER)):  # int() itself refuses thousands of digits, with an exception
        return None
    number = int(digits)
    return number if number <= MAX_NUMBER else None


def parse_seconds(text: str) -> float | None:
    """Return the decimal number from 0 to MAX_SECONDS in `text`, without sign or exponent; None if it is no such
    number.
    """
    whole = text.replace(".", "", 1)
    seconds = float(text) if whole.isdecimal() and whole.isascii() else float("inf")
    return seconds if seconds <= MAX_SECONDS else None


def parse_amount(text: str) -> float | None:
    """Like `parse_seconds`, but refuses 0."""
    return parse_seconds(text) or None


_UNIT_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int | None:
    """Return the bytes in `text`: a decimal number, followed by K, M, G or T (powers of 1024; also KiB, KB, or small
    letters). From 1 to MAX_NUMBER; None if it is no such size.
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


_MEASURES: "dict[str, tuple[Callable[[str], int | float | None], str, str]]" = {
    "seconds": (parse_seconds, "a number of seconds, such as 90 or 0.5", f"from 0 to {MAX_SECONDS}"),
    "positive seconds": (parse_amount, "a number of seconds, such as 90 or 0.5", f"above 0, at most {MAX_SECONDS}"),
    "size": (parse_size, "a size, such as 512M or 2G", f"from 1 to {MAX_NUMBER}"),
    "amount": (parse_amount, "a number, such as 2 or 0.5", f"above 0, at most {MAX_SECONDS}"),
}
"""By the kind of an option: its parser, what its value must be, and from where to where."""
