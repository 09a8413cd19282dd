"""The verbs that must start fast, as a table, and the small parser over it.

The table is the single source: click's commands for these verbs (help, completion, messages about wrong usage) are
made from it in `hot_commands`. The parser decides only what is plainly right; all else it leaves to click.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["flag", "text", "texts", "choice", "number", "seconds", "positive seconds"]
    Value = str | int | float | bool | list[str] | None


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


class Argument:
    """One argument or, with `many`, any number of them, which then is a verb's last. `required`: at least one."""

    __slots__ = ("many", "metavar", "name", "required")

    def __init__(self, name: str, metavar: str, *, required: bool = True, many: bool = False) -> None:
        self.name = name
        self.metavar = metavar
        self.required = required
        self.many = many


class Verb:
    """One verb: its options, then one or more words; after the first of them, or after `--`, nothing is an option.

    Where it has `arguments`, those and the options stand in any order, and the words, if it takes any (`words` is not
    empty), stand behind `--` and may be missing.
    """

    __slots__ = ("arguments", "by_flag", "epilog", "help", "name", "options", "words")

    def __init__(
        self,
        name: str,
        options: tuple[Option, ...],
        words: str,
        text: str,
        epilog: str,
        *,
        arguments: tuple[Argument, ...] = (),
    ) -> None:
        self.name = name
        self.options = options
        self.words = words
        self.arguments = arguments
        self.help = text
        self.epilog = epilog
        self.by_flag = {flag: option for option in options for flag in option.flags}


_BRANCH = Option(("-b", "--branch"), "text", "The session's branch (default: $WAYPOINT_BRANCH, else main).", "BRANCH")
_HOME = Option(("--home",), "text", "The home to use (default: $WAYPOINT_HOME).", "DIR")
_JSON = Option(("--json",), "flag", "Print one JSON value.")

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
        _JSON,
        _BRANCH,
        _HOME,
    ),
    "CMD",
    """Start the branch's session, or attach to it if it is live.

    All that is done in it happens on a copy-on-write view of the machine. When its shell is left the session ends and
    its files are kept; the next 'waypoint shell BRANCH' goes on from them. Ctrl-] d leaves the session running.
    Exit status: the shell's.""",
    "Example: waypoint shell fix-1 --bind ~/project:/project; waypoint shell ci -d --net none -- make test",
    arguments=(Argument("argument", "BRANCH", required=False),),
)

_NAME = Argument("name", "NAME")

_CHECKPOINT = Verb(
    "checkpoint",
    (
        Option(("-m", "--message"), "text", "What to remember about it.", "MSG"),
        _BRANCH,
        Option(
            ("--tier",),
            "choice",
            "Fail (5) rather than keep less than this (default: auto, the best that can be had).",
            choices=("auto", "live", "respawn", "files"),
        ),
        Option(("--park",), "flag", "End the session with it: 'waypoint shell BRANCH' takes it up again."),
        Option(("--force",), "flag", "Move a checkpoint of this name."),
        _JSON,
        _HOME,
    ),
    "",
    """Capture the session as it is, files, processes and terminal, and name that NAME. The session goes on.

    Prints the name, the capture's id, its tier and how long the session stood still. Tiers: `live` keeps the processes
    as they are; `files` does not keep them. What could not be kept as faithfully as it might be is told on stderr.""",
    "Example: waypoint checkpoint before-upgrade -m 'all tests pass' && waypoint restore before-upgrade",
    arguments=(_NAME,),
)

_RESTORE = Verb(
    "restore",
    (
        Option(("-b",), "text", "The branch to restore on (default: $WAYPOINT_BRANCH, else main).", "BRANCH"),
        Option(("--branch",), "text", "Leave all branches as they are and restore on NEW, beside them.", "NEW"),
        Option(("--only",), "choice", "Bring back only this aspect of it.", choices=("files", "shell")),
        _JSON,
        _HOME,
    ),
    "",
    """Bring back what NAME stands for, in place: the branch's session is replaced by it, or started with it.

    What is replaced is captured first, 'waypoint undo' brings that back. Attached terminals stay attached. NAME is a
    checkpoint, a branch, or a capture's id or its beginning. Prints the branch.""",
    "Example: waypoint restore before-upgrade; waypoint restore before-upgrade --branch retry",
    arguments=(_NAME,),
)

_FORK = Verb(
    "fork",
    (
        Option(("-n", "--count"), "number", "Make N branches, named PREFIX-1 and so on.", "N"),
        Option(("--prefix",), "text", "What their names begin with (default: NAME).", "PREFIX"),
        _JSON,
        _HOME,
    ),
    "CMD",
    """Start live sessions on new branches, each a copy of what NAME stands for; all of them or none.

    A NAME that is a live branch is captured as it is now. Prints the branches.

    With CMD, runs that in the shell of each, at once, and prints what they say, each line behind its branch. As with
    'waypoint exec' a single CMD is shell text, several are words that are quoted. {i} (1, 2, ...) and {branch} in it
    are replaced. Exit status 1 if one of them fails.""",
    "Example: waypoint fork ready -n 3 -- 'make test SEED={i}'",
    arguments=(_NAME, Argument("branches", "BRANCH", required=False, many=True)),
)

VERBS = {verb.name: verb for verb in (_EXEC, _RUN, _SHELL, _CHECKPOINT, _RESTORE, _FORK)}


def parse(verb: Verb, argv: list[str]) -> "dict[str, Value] | None":
    """The parameters by name, `words` for the words; None if this needs a closer look: help, or something wrong."""
    found: dict[str, Value] = {option.name: _unset(option) for option in verb.options}
    rest = list(argv)
    arguments: list[str] = []
    while rest:
        word = rest.pop(0)
        if word == "--":
            if not verb.words:
                return None
            break
        if word == "-" or not word.startswith("-"):
            if verb.arguments:
                arguments.append(word)
                continue
            rest.insert(0, word)
            break
        if not _take(verb, found, word, rest):
            return None
    if verb.words:
        found["words"] = rest
    return found if _assign(verb.arguments, found, arguments) and (rest or verb.arguments) else None


def _assign(arguments: tuple[Argument, ...], found: "dict[str, Value]", given: list[str]) -> bool:
    """Note what was given for each argument. False if it is too little or too much."""
    for argument in arguments:
        taken, given = (given, []) if argument.many else (given[:1], given[1:])
        if argument.required and not taken:
            return False
        found[argument.name] = taken if argument.many else (taken[0] if taken else None)
    return not given


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
    if option.kind == "number":
        found[option.name] = number = parse_number(value)
        return number is not None
    seconds = parse_seconds(value)
    found[option.name] = seconds
    return seconds is not None and (seconds > 0 or option.kind == "seconds")


def parse_number(text: str) -> int | None:
    """A whole number, 1 or more; None if it is none. Nothing but digits."""
    return (int(text) or None) if text.isdecimal() and text.isascii() else None


def parse_seconds(text: str) -> float | None:
    """A decimal number of seconds; None if it is none. No sign, no exponent, no `inf`."""
    whole = text.replace(".", "", 1)
    return float(text) if whole.isdecimal() and whole.isascii() else None
