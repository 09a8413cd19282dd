"""The manual pages in man(7) format, made from the table of verbs when a wheel is built (setup.py).

One page for each verb, as with git, so that apropos(1) finds each verb by its purpose. One page for all, as with tmux,
would hide twenty verbs behind one line of apropos.
"""

from collections.abc import Iterator

from waypoint import __version__
from waypoint.model.paths import RUNTIME, SYSTEM_HOME
from waypoint.model.verbs import Option, Verb
from waypoint.model.verbs.table import WAYPOINT, Group, first_sentence

_ENVIRONMENT = {
    "WAYPOINT_HOME": "The home to use if --home is not given.",
    "WAYPOINT_BRANCH": "The branch to use if --branch is not given. Set inside a session.",
    "WAYPOINT_CRIU": "The path of the CRIU to use. Otherwise setup finds or installs one.",
    "XDG_DATA_HOME": "Where setup installs completion for a user who is not root; default: ~/.local/share.",
}
_FILES = {
    SYSTEM_HOME: "The machine's home.",
    "~/.local/share/waypoint": "A user's own home, which is used if it has been set up.",
    RUNTIME: "Sockets, and records of running sessions.",
    "HOME/daemon.log": "The log of the daemon; waypoint-daemon-logs(1) prints it.",
}
_EXIT = {
    "0": "Success.",
    "1": "A negative result: a command of a fork failed, or gc could not remove something.",
    "2": "Wrong usage, or an unknown name or branch.",
    "3": "This machine lacks something that the command needs.",
    "4": "Not possible in the present state, or the name is taken.",
    "5": "The processes cannot be kept at the requested tier.",
    "10": "Stored data is damaged.",
    "125": "Waypoint itself failed. exec and run use it for every failure of Waypoint; other codes are the command's.",
}


def pages() -> dict[str, str]:
    """Return all pages by their file names, such as `waypoint-daemon-stop.1`."""
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
            f".B waypoint {_text(verb.name)}\n{_text(verb.usage)}\n",
            _section("DESCRIPTION", verb.help),
            *([_section("COMMANDS")] if members else []),
            *(_entry(_reference(member), first_sentence(member)) for member in members),
            _options(verb),
            _section("EXAMPLES", verb.epilog) if verb.epilog else "",
            _section("SEE ALSO"),
            ",\n".join(also) + "\n",
        ]
    )


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
    """Return a paragraph below a heading, which is in man(7) format already."""
    return f".TP\n{heading}\n{_text(text)}\n"


def _text(text: str) -> str:
    """`text`, escaped so that no character of it is an instruction (groff_char(7), groff(7))."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    safe = safe.replace("`", "\\(ga").replace("~", "\\(ti")
    return f"\\&{safe}" if safe.startswith((".", "\\(aq")) else safe
