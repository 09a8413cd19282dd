"""The manual pages, in the language of man(7), made from the table of verbs when a wheel is built (setup.py).

One page for each verb, as with git: `man waypoint-fork` is as short as `waypoint fork --help`, and apropos(1) finds
each verb by what it does. A page for all, as with tmux, would hide twenty verbs behind one line of apropos.
"""

from collections.abc import Iterator

from waypoint import __version__
from waypoint.model.paths import RUNTIME, SYSTEM_HOME
from waypoint.model.verbs import Group, Option, Verb
from waypoint.model.verbs.table import WAYPOINT, first_sentence

_ENVIRONMENT = {
    "WAYPOINT_HOME": "The home to use, if no --home is given.",
    "WAYPOINT_BRANCH": "The branch to use, if no --branch is given. In a session: the session's own.",
    "WAYPOINT_CRIU": "The path of a CRIU to use instead of what setup finds or installs.",
    "XDG_DATA_HOME": "Where setup by a user who is not root puts completion; otherwise ~/.local/share.",
}
_FILES = {
    SYSTEM_HOME: "The machine's home, with all that is kept.",
    "~/.local/share/waypoint": "A user's own home, used if it is there, or if the machine has none.",
    RUNTIME: "Sockets and records of what runs.",
    "HOME/daemon.log": "What the daemon has logged, as waypoint-daemon-logs(1) prints it.",
}
_EXIT = {
    "0": "All went well.",
    "1": "The thing said no: a command of a fork failed.",
    "2": "Wrong usage, or an unknown name or branch.",
    "3": "This machine lacks something.",
    "4": "Wrong moment, or the name is taken.",
    "5": "The workload refuses the tier that was asked for.",
    "10": "Stored data are damaged.",
    "125": "Waypoint itself failed. exec and run: as every failure of waypoint; all other codes are the command's.",
}


def pages() -> dict[str, str]:
    """All pages by their file names, such as `waypoint-daemon-stop.1`."""
    found = {"waypoint.1": _overview()}
    for verb in _with_groups(WAYPOINT):
        found[f"{_page(verb)}.1"] = _page_of(verb)
    return found


def _with_groups(group: Group) -> Iterator[Verb]:
    for member in group.members:
        yield member
        if isinstance(member, Group):
            yield from _with_groups(member)


def _page(verb: Verb) -> str:
    return "-".join(["waypoint", *verb.name.split()])


def _overview() -> str:
    return "".join(
        [
            _head("waypoint", first_sentence(WAYPOINT)),
            _section("SYNOPSIS"),
            ".B waypoint\n[\\fB\\-\\-home\\fR \\fIDIR\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]\n",
            _section("DESCRIPTION", WAYPOINT.help),
            _section("COMMANDS"),
            *(_entry(_reference(verb), first_sentence(verb)) for verb in _with_groups(WAYPOINT)),
            _options(WAYPOINT),
            _list("ENVIRONMENT", _ENVIRONMENT),
            _list("FILES", _FILES),
            _list("EXIT STATUS", _EXIT),
            _section("EXAMPLES", WAYPOINT.epilog),
        ]
    )


def _page_of(verb: Verb) -> str:
    members = verb.members if isinstance(verb, Group) else ()
    parent = "-".join(_page(verb).split("-")[:-1])
    also = [_reference(member) for member in members] or [f".BR {_text(parent)} (1)"]
    if parent != "waypoint":
        also.append(".BR waypoint (1)")
    return "".join(
        [
            _head(_page(verb), first_sentence(verb)),
            _section("SYNOPSIS"),
            f".B waypoint {_text(verb.name)}\n{_text(_usage(verb))}\n",
            _section("DESCRIPTION", verb.help),
            *([_section("COMMANDS")] if members else []),
            *(_entry(_reference(member), first_sentence(member)) for member in members),
            _options(verb),
            _section("EXAMPLES", verb.epilog) if verb.epilog else "",
            _section("SEE ALSO"),
            ",\n".join(also) + "\n",
        ]
    )


def _usage(verb: Verb) -> str:
    words = ["[OPTIONS]", *(argument.usage for argument in verb.arguments)]
    if isinstance(verb, Group):
        words.append("[COMMAND]" if verb.acts else "COMMAND")
    if verb.words:
        words.append(f"[-- {verb.words}...]" if verb.arguments else f"[--] {verb.words}...")
    return " ".join(words)


def _head(page: str, does: str) -> str:
    title = f'.TH "{_text(page.upper())}" "1" "" "waypoint {__version__}" "Waypoint"\n'
    return f"{title}.SH NAME\n{_text(page)} \\- {_text(does.rstrip('.'))}\n"


def _section(title: str, text: str = "") -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")] if text else []
    return f".SH {title}\n" + ".PP\n".join(f"{_text(paragraph)}\n" for paragraph in paragraphs)


def _options(verb: Verb) -> str:
    help_option = Option(("-h", "--help"), "flag", "Show help.")
    return _section("OPTIONS") + "".join(_entry(_shown(one), one.help) for one in (*verb.options, help_option))


def _shown(option: Option) -> str:
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags)
    value = "|".join(option.choices) or option.metavar
    return f"{flags} \\fI{_text(value)}\\fR" if value else flags


def _reference(verb: Verb) -> str:
    return f".BR {_text(_page(verb))} (1)"


def _list(title: str, entries: dict[str, str]) -> str:
    return _section(title) + "".join(_entry(f"\\fB{_text(name)}\\fR", text) for name, text in entries.items())


def _entry(heading: str, text: str) -> str:
    """A paragraph below a heading, which is in the language of man(7) already."""
    return f".TP\n{heading}\n{_text(text)}\n"


def _text(text: str) -> str:
    """`text` as it reads, whatever is in it: no character of it is an instruction (groff_char(7), groff(7))."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    safe = safe.replace("`", "\\(ga").replace("~", "\\(ti")
    return f"\\&{safe}" if safe.startswith((".", "\\(aq")) else safe
