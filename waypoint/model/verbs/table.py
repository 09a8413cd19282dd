"""All verbs, in the order in which help lists them. The verbs of the fast path are defined in `fast`."""

from waypoint.model.verbs import Argument, Option, Verb, fast
from waypoint.model.verbs.fast import BRANCH, HOME, JSON, NAME


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


ONE_BRANCH = Argument("argument", "BRANCH", required=False)
BRANCHES = Argument("arguments", "BRANCH", required=False, many=True)

_SETUP = Verb(
    "setup",
    (
        Option(("--check",), "flag", "Change nothing, say what is installed; exit status 3 if something is missing."),
        Option(("--remove",), "flag", "End all sessions and remove the home with all that was kept."),
        Option(
            ("--user",),
            "text",
            "Let this user, besides root, use waypoint without sudo, in place of the one before.",
            "USER",
        ),
        Option(
            ("--group",), "text", "Also let the members of this group use it, in place of the group before.", "GROUP"
        ),
        Option(
            ("--trust",),
            "choice",
            "What USER may have: their own (default), or `full`: all that root has. USER is root on this machine then.",
            choices=("own", "full"),
        ),
        Option(("--yes",), "flag", "With --remove: do not ask."),
        HOME,
    ),
    """Make this machine ready: a home with its pool of files, a CRIU that works on this kernel, completion for bash and
    zsh, and where systemd runs a unit that starts the daemon.

    Needs root; anybody else who may use the home gets completion. May be run again at any time: it does what is missing
    and says what it changed. --remove asks first; without a terminal it needs --yes.

    USER, and the members of GROUP, get sessions as themselves, and go on with no others: --user root, --base, and a
    --bind of what they could not use themselves, are refused. With --trust full USER gets all this, and so is root on
    the machine; --user USER without it takes that back.""",
    'Example: sudo waypoint setup --user "$USER"',
)

_DOCTOR = Verb(
    "doctor",
    (JSON, HOME),
    """Try everything that Waypoint needs of this machine, for real, on a throw-away session. With BRANCH: look at the
    processes of its live session, and tell which of them could not be kept as they are (tier `live`), and why.

    Exit status 3 if a session cannot be started, or cannot be kept with its processes.""",
    "Example: sudo waypoint doctor",
    arguments=(ONE_BRANCH,),
)

_ATTACH = Verb(
    "attach",
    (fast.USER, BRANCH, HOME),
    """Show a live session on this terminal. Several may be attached to one.

    Ctrl-] d leaves it running; Ctrl-] twice sends one. Exit status: the shell's if it ends, 0 if it is left.""",
    "Example: waypoint attach fix-1",
    arguments=(ONE_BRANCH,),
)

_LOGS = Verb(
    "logs",
    (Option(("-f", "--follow"), "flag", "Go on with what the terminal shows from now on."), BRANCH, HOME),
    "Print what the session's terminal has shown, as far back as it is kept, byte for byte.",
    "Example: waypoint logs -f fix-1",
    arguments=(ONE_BRANCH,),
)

_EVENTS = Verb(
    "events",
    (
        Option(("-f", "--follow"), "flag", "Go on with what happens from now on, until 'waypoint daemon stop'."),
        Option(("--json",), "flag", "Print one JSON value per line."),
        HOME,
    ),
    "List what has happened since the daemon started: operations, sessions that began and ended, jobs.",
    "Example: waypoint events --follow",
)

_PS = Verb(
    "ps",
    (Option(("-a", "--all"), "flag", "Also branches that could be started again."), JSON, HOME),
    """List live sessions.

    FILES is what the session has changed on disk. A branch is `parked` if its programs were kept, too, `ended` if its
    files were, `lost` if it died with the machine.""",
    "Example: waypoint ps --all",
)

_STOP = Verb(
    "stop",
    (
        BRANCH,
        Option(("-a", "--all"), "flag", "Every live session."),
        Option(("--checkpoint",), "text", "Keep the processes, too, as checkpoint NAME, or exit 5.", "NAME"),
        Option(("--discard",), "flag", "Throw the session's files away instead of keeping them."),
        JSON,
        HOME,
    ),
    "End sessions and keep their files: 'waypoint shell BRANCH' goes on from them.",
    "Example: waypoint stop fix-1 fix-2; waypoint stop fix-3 --checkpoint before-lunch",
    arguments=(BRANCHES,),
)

_BRANCH_DELETE = Verb(
    "branch delete",
    (Option(("--stop",), "flag", "First end the sessions of branches that are live."), JSON, HOME),
    """Delete branches, all of them or none. 'waypoint undo' brings a branch back, until 'waypoint gc' removes its
    captures.""",
    "Example: waypoint branch delete --stop fix-1 fix-2",
    arguments=(Argument("names", "BRANCH", many=True),),
)

_BRANCH_LIST = Verb(
    "branch list",
    (JSON, HOME),
    "List all branches: live or not, the capture that each goes on from, how old that is.",
    "Example: waypoint branch list --json",
)

_BRANCH_RENAME = Verb(
    "branch rename",
    (HOME,),
    "Rename a branch that is not live.",
    "Example: waypoint branch rename fix-1 fixed",
    arguments=(Argument("old", "OLD"), Argument("new", "NEW")),
)

_BRANCH = Group(
    "branch",
    (JSON, HOME),
    "List branches, delete them, rename one. Without a command: list.",
    "Example: waypoint branch; waypoint branch delete fix-1",
    (_BRANCH_DELETE, _BRANCH_LIST, _BRANCH_RENAME),
    acts=True,
)

_LOG = Verb(
    "log",
    (
        Option(("--graph",), "flag", "Draw beside the list which capture goes on from which."),
        Option(("-a", "--all"), "flag", "Every capture there is, with a name or without."),
        Option(("-n", "--limit"), "number", "At most N captures.", "N"),
        JSON,
        BRANCH,
        HOME,
    ),
    """List the captures that NAME goes back to, the newest first: states to which a session can go back.

    NAME is a branch, a checkpoint, or a capture's id or its beginning. A capture's names stand behind its id.""",
    "Example: waypoint log --graph --all",
    arguments=(Argument("argument", "NAME", required=False),),
)

_SHOW = Verb(
    "show",
    (JSON, HOME),
    """Tell all about one capture: its parents, and how much of files, processes and terminal was kept.

    NAME is a checkpoint, a branch (its tip; before the first one its live session), or a capture's id or its
    beginning.""",
    "Example: waypoint show before-upgrade",
    arguments=(NAME,),
)

_RM = Verb(
    "rm",
    (JSON, HOME),
    """Remove names, of checkpoints and of branches that are not live; all of them or none.

    The captures can be used by their ids, and 'waypoint undo' brings the names back, until 'waypoint gc' removes
    them.""",
    "Example: waypoint rm before-upgrade",
    arguments=(Argument("names", "NAME", many=True),),
)

_UNDO = Verb(
    "undo",
    (
        Option(("-b", "--branch"), "text", "What BRANCH did last (default: $WAYPOINT_BRANCH).", "BRANCH"),
        fast.LOSE_PROCESSES,
        JSON,
        HOME,
    ),
    """Take back operation N of 'waypoint op log'; without N, the last one that was not yet taken back.

    Without N it is the last operation on BRANCH, or asked for by whoever works on BRANCH ($WAYPOINT_BRANCH, processes
    in its session). Without a branch it is the last one that you asked for (your user, from this terminal or one that
    is closed), or that was asked for inside of main. What others did is taken back by its number only; so is, for a
    user who is neither root nor trusted fully, what another user did on BRANCH.

    A second undo takes back what was done before, as in an editor; the start of a session, which comes at last, ends
    it. Each says what it takes back, of when and of whom.

    The names stand again for what they stood for before the operation. A session that the operation ended is started
    again from what was kept, a session that it replaced comes back, a session that it began is ended. A session that
    is replaced or ended is captured first, with its processes: exit status 5 if that cannot be done. What will not come
    back is told on stderr first. An undo is an operation, too: it is taken back, all of it, by its number.""",
    "Example: waypoint undo -b fix-1; waypoint op log -n 5 && waypoint undo 17",
    arguments=(Argument("number", "N", required=False, is_number=True),),
)

_GC = Verb(
    "gc",
    (
        Option(
            ("--keep-operations",), "text", "Operations of this age can be taken back afterwards (default: 7d).", "AGE"
        ),
        Option(("--dry-run",), "flag", "Remove nothing, say what would be removed."),
        Option(("--compact",), "flag", "Fail if sessions live: only without them is the pool made smaller."),
        JSON,
        HOME,
    ),
    """Remove the captures that nothing keeps, and what the home's names.db does not know; give the space back.

    What is freed inside the pool of files is given back to the disk when no session lives: by this command, or some
    seconds after the last session has ended. While sessions live they use it.

    A capture is kept by each branch whose tip it is, by a checkpoint, and by each operation of the last 7 days that
    'waypoint undo' would need it for. What a kept capture goes on from stays in the log, but its content is removed.
    AGE is a number with s, m, h, d or w behind it: 12h, 30d.""",
    "Example: waypoint gc --dry-run; waypoint gc --keep-operations 12h",
)

_DU = Verb(
    "du",
    (JSON, HOME),
    """Say what holds how much of the disk: captures and live sessions (all, or those that NAMEs stand for), the rest.

    FILES is what a capture or session has changed on disk, OWN FILES what of it no other one has: so much becomes free
    if it goes. PROCESSES is what the images of its processes and its terminal take.""",
    "Example: waypoint du; waypoint du before-upgrade --json",
    arguments=(Argument("names", "NAME", required=False, many=True),),
)

_OP_LOG = Verb(
    "op log",
    (Option(("-n", "--limit"), "number", "At most N operations.", "N"), JSON, HOME),
    "List operations, the newest first: what each moved, and what 'waypoint undo' of it would do, or why it cannot.",
    "Example: waypoint op log -n 10 && waypoint undo 17",
)

_OP = Group(
    "op",
    (),
    "The operations in this home. Each operation that moved a name or a session has a number, for 'waypoint undo'.",
    "Example: waypoint op log -n 10",
    (_OP_LOG,),
)

_DAEMON_LOGS = Verb(
    "daemon logs",
    (
        Option(("-f", "--follow"), "flag", "Go on with what is logged from now on."),
        Option(("-n", "--limit"), "number", "At most the last N lines.", "N"),
        HOME,
    ),
    """Print what the daemon and its supervisor have logged, as far back as it is kept.

    The log is daemon.log in the home, and daemon.log.1 before that: 4 MiB each, for root only. Works without a
    daemon.""",
    "Example: waypoint daemon logs -n 50 -f",
)

_DAEMON_RUN = Verb(
    "daemon run",
    (HOME,),
    """Start the daemon if it does not run, and wait until it is stopped.

    SIGTERM and Ctrl-C stop it. Sessions go on.""",
    "Example, in a service: ExecStart=waypoint daemon run",
)

_DAEMON_STATUS = Verb(
    "daemon status",
    (JSON, HOME),
    "Say whether the daemon runs, and since when. Exit status 4 if it does not.",
    "Example: waypoint daemon status --json",
)

_DAEMON_STOP = Verb(
    "daemon stop",
    (HOME,),
    """Stop the daemon. Sessions go on, and what is attached to them ends. The next command starts it again.

    Only root may, and a user whom root trusts fully.""",
    "Example: waypoint daemon stop",
)

_DAEMON = Group(
    "daemon",
    (),
    "The process that serves sessions. It starts when it is needed and starts again if it dies.",
    "Example: waypoint daemon status",
    (_DAEMON_LOGS, _DAEMON_RUN, _DAEMON_STATUS, _DAEMON_STOP),
)

WAYPOINT = Group(
    "",
    (HOME,),
    """A terminal whose whole state can be kept, left and taken up again.

    A session is a shell on a copy-on-write view of this machine. It outlives the client that opened it, people and
    programs work in it side by side. Checkpoints keep its files, processes and terminal; from each any number of
    sessions can go on.""",
    "A first session: sudo waypoint setup, then waypoint shell. 'waypoint COMMAND --help' has examples.",
    (
        *(_SETUP, _DOCTOR, fast.SHELL, _ATTACH, fast.EXEC, fast.RUN, _LOGS, _PS, _STOP),
        *(fast.CHECKPOINT, fast.RESTORE, fast.FORK, _BRANCH, _LOG, _SHOW, _RM, _UNDO, _OP, _GC, _DU, _EVENTS, _DAEMON),
    ),
)
"""The whole command line: the options before the first verb, and all verbs."""

STATUS = Verb(
    "status",
    (JSON,),
    "Say which branch this is, and the capture that it goes on from.",
    "Example: waypoint status",
)
"""This verb exists only inside a session."""

INSIDE: dict[Verb, tuple[str, ...]] = {
    fast.CHECKPOINT: ("-m", "--message", "--tier", "--force", "--json"),
    fast.RESTORE: ("-b", "--branch", "--new", "--only", "--lose-processes", "--json"),
    fast.FORK: ("-n", "--count", "--prefix", "--json"),
    _UNDO: ("-b", "--branch", "--lose-processes", "--json"),
    _LOG: ("-b", "--branch", "-n", "--limit", "--json"),
    _SHOW: ("--json",),
    _OP_LOG: ("-n", "--limit", "--json"),
    _PS: ("--json",),
    _LOGS: ("-b", "--branch"),
    STATUS: ("--json",),
    _STOP: ("-b", "--branch", "--checkpoint", "--json"),
}
"""The verbs that a session's own processes may use, each with the options that they may give: those that make sense for
the session's own branch. A session can end itself, but throws nothing away.
"""


def find(argv: list[str]) -> tuple[Verb | None, list[str]]:
    """The verb that the first words of `argv` name, None if they name none that does something; and the words behind
    it.
    """
    verb: Verb = WAYPOINT
    while isinstance(verb, Group) and argv:
        member = next((one for one in verb.members if one.name.rpartition(" ")[2] == argv[0]), None)
        if member is None:
            break
        verb, argv = member, argv[1:]
    return (None if isinstance(verb, Group) and not verb.acts else verb), argv


def every_verb(group: Group = WAYPOINT) -> list[Verb]:
    """All verbs of `group` that do something by themselves, including the members of its groups."""
    found: list[Verb] = [group] if group.acts else []
    for member in group.members:
        found += every_verb(member) if isinstance(member, Group) else [member]
    return found


def first_sentence(verb: Verb) -> str:
    """What the verb does, in the words with which its help begins."""
    text = " ".join(verb.help.split("\n\n")[0].split())
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]
