"""The verbs that must start fast, as a table, and the small parser over it.

The table is the single source: click's commands for these verbs (help, completion, messages about wrong usage) are
made from it in `hot_commands`. The parser decides only what is plainly right; all else it leaves to click.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["flag", "text", "texts", "choice", "seconds", "positive seconds"]
    Value = str | float | bool | list[str] | None


class Option:
    """One option. `flags`: every way to write it, the long one last. `choices`: what a "choice" may be; "texts" may be
    given several times.
    """

    __slots__ = ("choices", "flags", "help", "kind", "metavar", "name")

    def __init__(
        self, flags: tuple[str, ...], kind: "Kind", text: str, metavar: str = "", choices: tuple[str, ...] = ()
    ) -> None:
        self.choices = choices
        self.flags = flags
        self.kind = kind
        self.help = text
        self.metavar = metavar
        self.name = flags[-1].lstrip("-").replace("-", "_")


class Verb:
    """One verb: its options, then one or more words; after the first of them, or after `--`, nothing is an option.

    Where it `takes_branch` the words stand behind `--` and may be missing, and one word before them is a branch.
    """

    __slots__ = ("by_flag", "epilog", "help", "name", "options", "takes_branch", "words")

    def __init__(
        self, name: str, options: tuple[Option, ...], words: str, text: str, epilog: str, *, takes_branch: bool = False
    ) -> None:
        self.name = name
        self.options = options
        self.words = words
        self.takes_branch = takes_branch
        self.help = text
        self.epilog = epilog
        self.by_flag = {flag: option for option in options for flag in option.flags}


_BRANCH = Option(("-b", "--branch"), "text", "The session's branch (default: $WAYPOINT_BRANCH, else main).", "BRANCH")
_HOME = Option(("--home",), "text", "The home to use (default: $WAYPOINT_HOME).", "DIR")

_EXEC = Verb(
    "exec",
    (
        _BRANCH,
        Option(("--timeout",), "positive seconds", "End the command after S seconds, exit 124.", "S"),
        Option(("--wait-prompt",), "seconds", "How long to wait for the shell's prompt (default: 5).", "S"),
        Option(("-t", "--tty"), "flag", "Connect the command to this terminal."),
        Option(("-i", "--interactive"), "flag", "Pass stdin on to the command (otherwise it reads /dev/null)."),
        Option(("--json",), "flag", "Print one JSON value when the command has ended."),
        _HOME,
    ),
    "CMD",
    """Run one command line in the session's own shell.

    What it changes in the shell stays: directory, variables, functions, jobs. A single CMD is shell text, several are
    words that are quoted. stdout and stderr come as one stream.

    Exit status: the command's; 124 after --timeout, 125 if waypoint itself failed. If whoever reads our stdout goes
    away, the command is interrupted and the status is 141.""",
    "Example: waypoint exec 'cd /srv && export MODE=test' && waypoint exec make -j4",
)

_RUN = Verb(
    "run",
    (
        _BRANCH,
        Option(("-i", "--interactive"), "flag", "Pass stdin on to the process (otherwise it reads /dev/null)."),
        Option(("-t", "--tty"), "flag", "Give the process a terminal of its own."),
        Option(("--cwd",), "text", "Start in this directory (default: the session's).", "DIR"),
        _HOME,
    ),
    "ARGV",
    """Run a separate process in the session, apart from its shell.

    stdout and stderr stay apart. Exit status: the process's; 125 if waypoint itself failed. If whoever reads our stdout
    goes away, the process gets SIGPIPE and the status is 141.""",
    "Example: waypoint run -it -- python3",
)

_SHELL = Verb(
    "shell",
    (
        Option(("--from",), "text", "Go on from the files of NAME (default: the branch's own).", "NAME"),
        Option(("--base",), "text", "The root file system under the session (default: this machine's).", "DIR"),
        Option(("--bind",), "texts", "Share a path of this machine as it is.", "HOST:PATH[:ro]"),
        Option(("--net",), "choice", "The session's network (default: private).", choices=("private", "host", "none")),
        Option(("--user",), "text", "Whose session it is (default: you, also under sudo).", "USER"),
        Option(("--cwd",), "text", "Where the shell starts (default: here).", "DIR"),
        Option(("-d", "--detach"), "flag", "Start it and print its branch; do not show it."),
        Option(("--json",), "flag", "Print one JSON value."),
        _BRANCH,
        _HOME,
    ),
    "CMD",
    """Start the branch's session, or attach to it if it is live.

    All that is done in it happens on a copy-on-write view of the machine. When its shell is left the session ends and
    its files are kept; the next 'waypoint shell BRANCH' goes on from them. Ctrl-] d leaves the session running.
    Exit status: the shell's.""",
    "Example: waypoint shell fix-1 --bind ~/project:/project; waypoint shell ci -d --net none -- make test",
    takes_branch=True,
)

VERBS = {verb.name: verb for verb in (_EXEC, _RUN, _SHELL)}


def parse(verb: Verb, argv: list[str]) -> "dict[str, Value] | None":
    """The parameters by name, `words` for the words (and `argument` for the branch); None if this needs a closer look:
    help, or something wrong.
    """
    found: dict[str, Value] = {option.name: _unset(option) for option in verb.options}
    rest = list(argv)
    arguments: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if word == "-" or not word.startswith("-"):
            if verb.takes_branch:
                arguments.append(word)
                continue
            rest.insert(0, word)
            break
        if not _take(verb, found, word, rest):
            return None
    found["words"] = rest
    if verb.takes_branch:
        found["argument"] = arguments[0] if arguments else None
        return found if len(arguments) <= 1 else None
    return found if rest else None


def _unset(option: Option) -> "Value":
    if option.kind == "texts":
        return []
    return False if option.kind == "flag" else None


def _take(verb: Verb, found: "dict[str, Value]", word: str, rest: list[str]) -> bool:
    """Note one word of options in `found`, with its value from `rest` if it needs one. False if not plainly right."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        option = verb.by_flag.get(flag)
        if option is None or (option.kind == "flag" and equals):
            return False
        return _note(found, option, value if equals else None, rest)
    for place in range(1, len(word)):  # -it is -i -t; -bNAME is -b NAME
        option = verb.by_flag.get(f"-{word[place]}")
        if option is None:
            return False
        if option.kind != "flag":
            return _note(found, option, word[place + 1 :] or None, rest)
        _note(found, option, None, rest)
    return True


def _note(found: "dict[str, Value]", option: Option, value: str | None, rest: list[str]) -> bool:
    if option.kind == "flag":
        found[option.name] = True
        return True
    if value is None:
        if not rest or rest[0].startswith("-"):
            return False
        value = rest.pop(0)
    if option.kind in ("text", "choice"):
        found[option.name] = value
        return not option.choices or value in option.choices
    if option.kind == "texts":
        texts = found[option.name]
        assert isinstance(texts, list)
        texts.append(value)
        return True
    seconds = parse_seconds(value)
    found[option.name] = seconds
    return seconds is not None and (seconds > 0 or option.kind == "seconds")


def parse_seconds(text: str) -> float | None:
    """A decimal number of seconds; None if it is none. No sign, no exponent, no `inf`."""
    whole = text.replace(".", "", 1)
    return float(text) if whole.isdecimal() and whole.isascii() else None
