"""All verbs, in the order in which help lists them. The verbs of the fast path are defined in `fast`."""

from waypoint.model.verbs import HELP_FLAGS, Argument, Option, Verb, did_you_mean, fast, no_such_option, wrong_usage
from waypoint.model.verbs.fast import BRANCH, HOME, JSON, NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


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

    @property
    def usage(self) -> str:
        return f"[OPTIONS] {'[COMMAND]' if self.acts else 'COMMAND'} [ARGS]..."

    @property
    def by_word(self) -> dict[str, Verb]:
        """The members by the last word of their names."""
        return {member.name.rpartition(" ")[2]: member for member in self.members}


ONE_BRANCH = Argument("argument", "BRANCH", required=False)
BRANCHES = Argument("arguments", "BRANCH", required=False, many=True)

_SETUP = Verb(
    "setup",
    (
        Option(
            ("--check",), "flag", "Change nothing; report what is installed. Exit status 3 if something is missing."
        ),
        Option(("--remove",), "flag", "End all sessions and remove the home with everything in it."),
        Option(("--user",), "text", "Let USER run waypoint without sudo. Replaces the user named before.", "USER"),
        Option(
            ("--group",),
            "text",
            "Let members of GROUP run waypoint without sudo. Replaces the group named before.",
            "GROUP",
        ),
        Option(
            ("--trust",),
            "choice",
            "`own` (default): USER has only USER's rights. `full`: USER can become root on this machine.",
            choices=("own", "full"),
        ),
        Option(("--encrypt",), "flag", "Encrypt captures in the home's store. The home must not have any yet."),
        Option(
            ("--key-file",),
            "text",
            "With --encrypt: the file that unlocks the store; made if missing. Default: keys/store.key in the home.",
            "FILE",
        ),
        Option(("--passphrase",), "flag", "With --encrypt: a passphrase unlocks the store instead of a file."),
        Option(
            ("--passphrase-file",),
            "text",
            "Read the passphrase from FILE (- for stdin), not from the terminal.",
            "FILE",
        ),
        Option(
            ("--undo-budget",),
            "size",
            "What captures may take that only undo needs. Default: a tenth of the disk.",
            "SIZE",
        ),
        Option(
            ("--hot-memory",),
            "size",
            "Memory for captures that are not yet on the disk. Default: an eighth of the memory.",
            "SIZE",
        ),
        Option(
            ("--standbys",),
            "choice",
            "How many frozen copies of checkpoints stand ready for a restore. Default: 2, if no program notices.",
            choices=("0", "1", "2", "4", "8"),
        ),
        Option(("--unlock",), "flag", "Give the daemon the passphrase that it needs after each start."),
        Option(("--yes",), "flag", "With --remove: do not ask."),
        HOME,
    ),
    """Prepare this machine.

    Creates a home, the folder in which Waypoint stores sessions and captures. Finds or installs a CRIU that works with
    this kernel. Installs completion for bash and zsh and, if systemd runs, a unit that starts the daemon. You can
    repeat setup at any time: it adds what is missing and reports what it changed.

    Only root can do this. A user who may use the home can run setup to install completion for this user only, and setup
    --check. After root has removed the home, such a user can run setup --remove to remove this completion. Completion
    that another home uses is kept.

    --remove asks before it removes anything; without a terminal it needs --yes.

    --encrypt protects the captures in the home's store, if somebody gets a copy of it. Without the key file or
    passphrase nobody can read them again: keep a copy. While the store is locked, sessions run and captures are made,
    but they are not stored. Setup lists what else is in the home and is not encrypted.

    The sessions of USER, and of members of GROUP, run as the user who starts them. These users cannot use the sessions
    of other users, start sessions as root or on another --base, or --bind paths that they cannot access otherwise. With
    --trust full, USER may do all of this, and so has the rights of root on this machine. To withdraw this trust, repeat
    'waypoint setup --user USER' without --trust.""",
    'Example: sudo waypoint setup --user "$USER"',
)

_DOCTOR = Verb(
    "doctor",
    (
        Option(
            ("--criu-log",),
            "text",
            "Print CRIU's log LOG of a failed checkpoint or restore. The error names LOG.",
            "LOG",
        ),
        Option(("-b", "--branch"), "text", "Check the processes of BRANCH's session.", "BRANCH"),
        JSON,
        HOME,
    ),
    """Check whether this machine can run Waypoint.

    Tries each feature in a temporary session. For a feature that does not work here, prints why, and how to get it.
    With BRANCH, lists the processes of this branch's running session, the tier at which a checkpoint can save each of
    them ('waypoint checkpoint --help' explains tiers), and the reason if this is not `live`. PID is the process id
    inside the session.

    Exit status 3 if sessions cannot be started, or cannot be saved with their processes. With BRANCH: if a process
    cannot be saved at tier `live`.""",
    "Example: sudo waypoint doctor",
    arguments=(ONE_BRANCH,),
)

_ATTACH = Verb(
    "attach",
    (fast.USER, BRANCH, HOME),
    """Show a running session on this terminal.

    Several terminals can be attached to one session. Ctrl-] d detaches and leaves the session running; Ctrl-] twice
    sends one Ctrl-]. Exit status: that of the shell if the session ends, 0 if you detach.""",
    "Example: waypoint attach fix-1",
    arguments=(ONE_BRANCH,),
)

_LOGS = Verb(
    "logs",
    (Option(("-f", "--follow"), "flag", "Continue with new output as it comes."), BRANCH, HOME),
    """Print the output of the session's terminal.

    Waypoint keeps only the latest output. It is printed byte for byte.""",
    "Example: waypoint logs -f fix-1",
    arguments=(ONE_BRANCH,),
)

_EVENTS = Verb(
    "events",
    (
        Option(("-f", "--follow"), "flag", "Continue with new events as they come, until 'waypoint daemon stop'."),
        Option(("--json",), "flag", "Print one JSON value per line."),
        HOME,
    ),
    """List the events since the daemon started.

    Events are operations, starts and ends of sessions, and jobs.""",
    "Example: waypoint events --follow",
)

_MCP = Verb(
    "mcp",
    (
        Option(("--http",), "flag", "Serve HTTP on 127.0.0.1 instead; print the URL."),
        Option(("--port",), "number", "With --http: the port. Default: any free one.", "PORT", bounds="1 to 65535"),
        Option(
            ("--token-file",),
            "text",
            "With --http: the file with the token that callers must send; made if missing. Default: "
            "~/.local/state/waypoint/mcp-token.",
            "FILE",
        ),
        HOME,
    ),
    """Serve agents as an MCP server.

    On stdin and stdout, so that an agent starts it itself: it gets tools to start, use, checkpoint, restore and branch
    sessions. When the agent ends, commands that its calls still run are ended; sessions run on.""",
    "Example: claude mcp add waypoint -- waypoint mcp",
)

PROFILE = Argument("profile", "PROFILE")

_PROFILE_LIST = Verb(
    "profile list",
    (JSON, HOME),
    """List the workload profiles.

    REMEDIES and VARIABLES are what 'waypoint profile show' explains. FROM is `built-in`, or the file in the folder
    `profiles` of the home. A file with an error is listed with the error, and not used.""",
    "Example: waypoint profile list",
)

_PROFILE_SHOW = Verb(
    "profile show",
    (JSON, HOME),
    """Show a workload profile: its programs, its settings and the reason for them.""",
    "Example: waypoint profile show node",
    arguments=(PROFILE,),
)

_PROFILE_TEST = Verb(
    "profile test",
    (JSON, HOME),
    """Test whether the program of a workload profile survives on this machine.

    Starts the program in a throw-away session, makes a checkpoint, forks it twice and restores it in place. In each
    copy the program must still know what it was told before. The program is the one that your PATH finds. Exit status 1
    if a step does not end as the profile expects, 3 if the program is not installed.""",
    "Example: waypoint profile test tmux",
    arguments=(PROFILE,),
)

_PROFILE = Group(
    "profile",
    (),
    """List, show or test workload profiles.

    A workload profile has what one kind of program needs so that checkpoints keep it: variables for all sessions,
    advice for when it cannot be kept, and a test. Profiles of your own are files in the folder `profiles` of the home;
    criu_profiles/README.md in Waypoint's source explains them.""",
    "Example: waypoint profile test node",
    (_PROFILE_LIST, _PROFILE_SHOW, _PROFILE_TEST),
)

AGENT = Argument("agent", "AGENT")

_INSTALL = Verb(
    "install",
    (JSON, HOME),
    """Install Waypoint's plugin in a coding agent: claude or codex.

    The plugin makes a point before each prompt, and before commands that can destroy something, so that 'waypoint
    rewind' can go back. It adds the tools of 'waypoint mcp', commands (/checkpoint, /try, /rewind-all, /branches) and a
    skill. It works for an agent inside of a session, and, if $WAYPOINT_BRANCH names a branch, for one outside: then
    the agent's shell commands run in the session of this branch.

    The agent's own plugin manager installs it, for you only. The agent's settings are copied before. You can repeat the
    command, also after an upgrade of Waypoint. 'waypoint uninstall' removes everything again.""",
    "Example: waypoint install claude && waypoint shell -- claude",
    arguments=(AGENT,),
)

_UNINSTALL = Verb(
    "uninstall",
    (JSON, HOME),
    """Remove Waypoint's plugin from a coding agent: claude or codex.

    The agent's settings are as before the installation; what you have changed since is kept.""",
    "Example: waypoint uninstall claude",
    arguments=(AGENT,),
)

_GUIDE = Verb(
    "guide",
    (
        Option(
            ("--for",),
            "choice",
            "Add what concerns this agent, or agents that use the MCP server.",
            choices=("claude", "codex", "mcp"),
        ),
        HOME,
    ),
    """Print what an agent needs to know to use Waypoint.

    Less than 120 lines: rules, an example, and all important commands. Put it into the agent's instructions, or let the
    agent run this command.""",
    "Example: waypoint guide --for claude >>CLAUDE.md",
)

_PS = Verb(
    "ps",
    (Option(("-a", "--all"), "flag", "Also list branches without a running session."), JSON, HOME),
    """List running sessions.

    FILES is the size of the files that the session has changed; "-" if measuring them, or the memory, takes longer than
    a second. CHANGES is what the last capture of the branch has changed since the one before; it is counted in the
    background. TIME LEFT is shown if a session is parked after a time without use (`9m58s idle`), or after some time in
    any case (`7h59m in all`). A branch without a running session has one of these STATEs: `parked`: its processes are
    saved, and 'waypoint shell BRANCH' continues them. `ended`: its files are saved. `lost`: the machine went down while
    the session was running; the changed files are still there. AGE and MESSAGE are those of its last capture.""",
    "Example: waypoint ps --all",
)

_PORT = Verb(
    "port",
    (
        Option(("--close",), "flag", "Do not forward to PORT any more. Its connections end."),
        BRANCH,
        JSON,
        HOME,
    ),
    """Publish a TCP port of a running session on this machine, or list its ports.

    Connections to a port of this machine's loopback addresses (127.0.0.1 and ::1) are forwarded to PORT of the session,
    also if the server listens on the session's loopback only. PORT is a number: the port of this machine has the same
    number if it is free, else any; or HOST:PORT, for the port HOST of this machine; or ADDR:HOST:PORT, to forward
    connections to this address of the machine, such as 0.0.0.0. Prints the address. Every program of this machine can
    connect to it; the server sees all connections as from 127.0.0.1. Ports stay with the branch, also when its session
    is restored or stopped and started; each fork gets a free port for each port of the original.

    Without PORT, lists the ports on which the session's programs listen, and the published ones.""",
    "Example: waypoint port fix-1 8000; waypoint port fix-1",
    arguments=(ONE_BRANCH, Argument("port", "PORT", required=False)),
)

_STOP = Verb(
    "stop",
    (
        BRANCH,
        Option(("-a", "--all"), "flag", "End every running session."),
        Option(
            ("--checkpoint",),
            "text",
            "First save files and processes as checkpoint NAME. If this fails: exit status 5.",
            "NAME",
        ),
        Option(("--files",), "flag", "Keep the files only: end the programs, so that the shell saves its history."),
        Option(("--discard",), "flag", "Delete the session's files. On a terminal, asks first if files were changed."),
        Option(("--yes",), "flag", "With --discard: do not ask."),
        JSON,
        HOME,
    ),
    """End sessions, and keep their files and programs.

    The processes are saved with their memory, as by 'waypoint checkpoint --park'; if they cannot be saved, the command
    lines of the programs, to start them again; if the session does not let that be done, only the files. Prints which
    (tier `live`, `respawn` or `files`). 'waypoint shell BRANCH' continues the session. With --files it continues with a
    new shell.

    --discard deletes what was changed since the branch's last capture or checkpoint; these remain. Nothing brings it
    back: 'waypoint undo' without a number leaves out what was done on the branch before. Exit status 130 if you answer
    no for one of the sessions.""",
    "Example: waypoint stop fix-1 fix-2; waypoint stop fix-3 --checkpoint before-lunch",
    arguments=(BRANCHES,),
)

_BRANCH_DELETE = Verb(
    "branch delete",
    (Option(("--stop",), "flag", "First end the sessions that are running."), JSON, HOME),
    """Delete branches.

    Deletes either all of them or none. 'waypoint undo' restores them, until 'waypoint gc' removes their captures.""",
    "Example: waypoint branch delete --stop fix-1 fix-2",
    arguments=(Argument("names", "BRANCH", many=True),),
)

_BRANCH_LIST = Verb(
    "branch list",
    (JSON, HOME),
    """List all branches.

    STATE shows whether the branch has a running session. TIP is the latest capture of the branch; TIER and AGE are
    those of this capture.""",
    "Example: waypoint branch list --json",
)

_BRANCH_RENAME = Verb(
    "branch rename",
    (HOME,),
    """Rename a branch.

    Its session must not be running.""",
    "Example: waypoint branch rename fix-1 fixed",
    arguments=(Argument("old", "OLD"), Argument("new", "NEW")),
)

_BRANCH = Group(
    "branch",
    (JSON, HOME),
    """List, delete or rename branches.

    Without a command: list.""",
    "Example: waypoint branch; waypoint branch delete fix-1",
    (_BRANCH_DELETE, _BRANCH_LIST, _BRANCH_RENAME),
    acts=True,
)

_LOG = Verb(
    "log",
    (
        Option(("--graph",), "flag", "Draw lines from each capture to its parents."),
        Option(("-a", "--all"), "flag", "List all captures of all branches."),
        Option(("-n", "--limit"), "number", "List at most N captures.", "N"),
        JSON,
        BRANCH,
        HOME,
    ),
    """List the captures of a branch, the newest first.

    'waypoint restore' can restore any of them. NAME is a branch, a checkpoint, or the id of a capture (at least 4 of
    its digits); the list begins with this capture. Each line shows the id, then the names in parentheses, the age, and
    what the capture has changed since the one before it (of the machine, if it is the first one): lines and files.""",
    "Example: waypoint log --graph --all",
    arguments=(Argument("argument", "NAME", required=False),),
)

_LIST = Verb(
    "list",
    (
        Option(("-b", "--branch"), "text", "List only the checkpoints that were taken on BRANCH.", "BRANCH"),
        JSON,
        HOME,
    ),
    """List the checkpoints, the newest first.

    PROCESSES is the size of the saved processes and terminal; 'waypoint du NAME' also measures the files. CHANGES is
    what the checkpoint has changed since the capture before it; it is counted in the background. With BRANCH, lists
    only the checkpoints that were taken on this branch. 'waypoint search' finds checkpoints by a text.""",
    "Example: waypoint list; waypoint list main --json",
    arguments=(ONE_BRANCH,),
)

_SHOW = Verb(
    "show",
    (JSON, HOME),
    """Show everything about one capture.

    Shows its parents, and what it contains: files, processes, terminal. NAME is a checkpoint, or the id of a capture
    (at least 4 of its digits). If NAME is a branch, shows its latest capture and its running session.""",
    "Example: waypoint show before-upgrade",
    arguments=(NAME,),
)

_ADOPT = Verb(
    "adopt",
    (
        BRANCH,
        Option(("-d", "--detach"), "flag", "Start it in the background."),
        JSON,
        HOME,
    ),
    """Run a command-line agent, or any other program, in a session.

    Starts the session of the branch, like 'waypoint shell --auto', and CMD in its shell. Points, to which 'waypoint
    rewind' can return, are made when CMD ends and after each further command of the shell. Claude Code and Codex also
    make one before each of your prompts, once 'waypoint install claude' or 'waypoint install codex' has installed the
    plugin. CMD is a program and its arguments.""",
    "Example: waypoint adopt -b fix-1 -- aider --yes",
    words="CMD",
)

_SEARCH = Verb(
    "search",
    (
        Option(("-n", "--limit"), "number", "List at most N captures (default: 50).", "N", bounds="1 to 1000"),
        JSON,
        HOME,
    ),
    """Find captures and running sessions by a text.

    Searches names of branches and checkpoints, messages of captures, labels and commands of points ('waypoint point',
    'waypoint shell --auto'), and paths of changed files. TEXT may be anywhere in them; upper and lower case are the
    same, and no character has a special meaning. Changed files are searched in running sessions, checkpoints and the
    latest captures of branches, if they are on disk.

    Lists what you may see, the newest first. Exit status 1 if nothing was found.""",
    "Example: waypoint search parser.py",
    arguments=(Argument("text", "TEXT"),),
)

_HANDOFF = Verb(
    "handoff",
    (JSON, HOME),
    """Describe a capture for whoever goes on with it.

    Prints one document in Markdown: what the capture is, how to restore it here and on another machine, its branch and
    age, programs, changed files, what led to it, attached layers, and the last output of the terminal. Secrets are
    hidden, as far as Waypoint recognises them. NAME is a checkpoint, a branch, or the id of a capture (at least 4 of
    its digits); of a branch, its latest capture.""",
    "Example: waypoint handoff before-upgrade >handoff.md",
    arguments=(NAME,),
)

_DIFF = Verb(
    "diff",
    (
        Option(("--stat",), "flag", "One line for each file, with its inserted and deleted lines (default)."),
        Option(("-p", "--patch"), "flag", "Show the lines that differ, as a patch in git's format."),
        Option(("--name-only",), "flag", "Print only the paths of the files."),
        Option(("--exit-code",), "flag", "Exit status 1 if there are differences."),
        Option(("--ignore",), "flag", "Leave out files that .gitignore files name, caches and logs."),
        Option(("--no-ignore",), "flag", "Show all files (default); cancels --ignore, as in a shell alias."),
        JSON,
        HOME,
    ),
    """Show what differs between two states: files, processes, environment.

    With NAME alone, shows what NAME has changed of this machine. With OTHER, shows what differs from NAME to OTHER.
    Each of them is a branch, a checkpoint, the id of a capture, or `machine`, which stands for the files of this
    machine as they are now. A branch with a running session stands for this session as it is now.

    Letters: A added, D removed, M changed, T became a file of another type, R a directory that was moved, m only its
    owner, mode or extended attributes differ. Programs and exported variables are compared only between two captures
    or sessions; of variables only the names are shown. The session's own /run, /dev, /proc and /sys, and directories
    that were given with --bind, are not compared.

    PATHs are paths in the session; then only files at or below them are compared.""",
    "Example: waypoint diff fix-1; waypoint diff before-upgrade main --patch -- /etc",
    arguments=(NAME, Argument("other", "OTHER", required=False)),
    words="PATH",
)

_APPLY = Verb(
    "apply",
    (
        Option(("--dry-run",), "flag", "Change nothing; list what would be changed, and the conflicts."),
        Option(("-y", "--yes"), "flag", "Do not ask. Without a terminal apply never asks."),
        Option(("--ours",), "flag", "For files that this machine has changed, too: keep those of this machine."),
        Option(("--theirs",), "flag", "For files that this machine has changed, too: take those of NAME."),
        Option(("--merge",), "flag", "For files that this machine has changed, too: merge both with git."),
        Option(("--as-patch",), "flag", "Apply nothing; print the changes as a patch for 'git apply'."),
        Option(
            ("--git-branch",),
            "text",
            "Apply nothing; commit the changes to the new branch NEW of the git repository on this machine.",
            "NEW",
        ),
        Option(
            ("--allow-special",),
            "flag",
            "Also apply devices, and programs that run with the rights of their owner or group, or with capabilities.",
        ),
        JSON,
        BRANCH,
        HOME,
    ),
    """Bring the file changes of a session onto this machine.

    NAME is a branch (default: $WAYPOINT_BRANCH, else main), a checkpoint, or the id of a capture. A running session is
    captured first. Applies either all of its changes or, if something goes wrong, none, even if Waypoint is killed
    meanwhile. 'waypoint diff NAME' shows the changes. 'waypoint undo' takes them back.

    Exit status 6, with a list and without any change, if there are conflicts: files that this machine has changed since
    the session first saw them. --ours, --theirs and --merge decide about these files; --merge takes the version in HEAD
    of their git repository as the one that both began with. PATHs are paths in the session; then only files at or below
    them are applied.

    Files are changed with your rights on this machine, and keep owner, mode, times and extended attributes of the
    session. The session's own /run, /dev, /proc and /sys, and directories that were given with --bind, are not
    applied. Of a session that was started with --base DIR, the changes are applied to DIR.

    A 'git push' inside a session changes only the session's copy of a repository on this machine. --git-branch brings
    the files out as a commit; the working tree stays as it is. The repository is that of the first PATH, else of the
    current directory; --as-patch prints paths relative to it.""",
    "Example: waypoint apply fix-1 --dry-run; waypoint apply fix-1 -- /srv/app; waypoint undo",
    arguments=(Argument("argument", "NAME", required=False),),
    words="PATH",
)

_CP = Verb(
    "cp",
    (HOME,),
    """Copy files between this machine and a session.

    One of SOURCE and DEST is NAME:PATH: a branch, a checkpoint, or the id of a capture, and an absolute path in it. The
    other one is a path on this machine, or - for a tar archive on stdout or stdin. Files are copied into DEST if it is
    a directory, else as DEST.

    Captures can only be read. Into a running session files are copied with the rights of its user. Copies on this
    machine belong to you. Links are copied as links.""",
    "Example: waypoint cp fix-1:/srv/app/report.txt .; waypoint cp ./data fix-1:/tmp",
    arguments=(Argument("source", "SOURCE"), Argument("dest", "DEST")),
)

_CAT = Verb(
    "cat",
    (HOME,),
    """Print a file of a session.

    NAME is a branch, a checkpoint, or the id of a capture; PATH is absolute in it.""",
    "Example: waypoint cat before-upgrade:/etc/hosts",
    arguments=(Argument("file", "NAME:PATH"),),
)

_LS = Verb(
    "ls",
    (Option(("-l", "--long"), "flag", "Also print mode, owner, size and time of change."), JSON, HOME),
    """List the files in a directory of a session.

    NAME is a branch, a checkpoint, or the id of a capture; PATH is absolute in it.""",
    "Example: waypoint ls -l before-upgrade:/etc",
    arguments=(Argument("file", "NAME:PATH"),),
)

_MOUNT = Verb(
    "mount",
    (HOME,),
    """Mount the files of a capture at a directory of this machine, read-only.

    NAME is a branch, a checkpoint, or the id of a capture. A running session is captured first. The capture stays on
    disk while it is mounted. 'waypoint umount DIR' or 'umount -R DIR' ends the mount. Only root, or a user with full
    trust, can do this.""",
    "Example: waypoint mount before-upgrade /mnt && ls /mnt/etc && waypoint umount /mnt",
    arguments=(NAME, Argument("dir", "DIR")),
)

_UMOUNT = Verb(
    "umount",
    (HOME,),
    """End a mount of 'waypoint mount'.

    Exit status 4 if programs use files in it.""",
    "Example: waypoint umount /mnt",
    arguments=(Argument("dir", "DIR"),),
)

_BASE_NAME = Argument("name", "BASE")

_BASE_CREATE = Verb(
    "base create",
    (
        Option(
            ("--from",),
            "text",
            "Make the base of SOURCE: a directory with a root file system, a container image or a Dockerfile.",
            "SOURCE",
        ),
        Option(("--force",), "flag", "Let BASE mean the new base, if there is a base of this name."),
        JSON,
        HOME,
    ),
    """Make a pinned base: the files below sessions, kept in the home.

    The files of sessions on it do not change when the machine does. Without --from, the base has the files of this
    machine that new sessions see, without the content of /tmp and /var/tmp; this may take gigabytes and minutes. A
    directory is copied without what is mounted in it. A container image is an archive, of 'docker save' or of an OCI
    image layout, also compressed, or the directory of a layout; sessions on it get its variables, working directory
    and user. A Dockerfile, or a directory with one, is built by buildah or docker, with your rights. Device nodes are
    left out. Equal files make an equal base, with the same id, on each machine. Only root, and users whom root trusts
    fully, may create bases; all users of the home may start
    sessions on them.""",
    "Example: waypoint base create debian --from /srv/bookworm && waypoint shell --base debian",
    arguments=(_BASE_NAME,),
)

_BASE_LIST = Verb(
    "base list",
    (JSON, HOME),
    """List the pinned bases.""",
    "Example: waypoint base list",
)

_BASE_RM = Verb(
    "base rm",
    (JSON, HOME),
    """Remove the name BASE.

    Sessions and captures on the base keep it. When there are none, 'waypoint gc' removes its files.""",
    "Example: waypoint base rm debian",
    arguments=(_BASE_NAME,),
)

_BASE_SHOW = Verb(
    "base show",
    (JSON, HOME),
    """Show the id of the base BASE, from what it was made, and the sessions on it.""",
    "Example: waypoint base show debian",
    arguments=(_BASE_NAME,),
)

_BASE = Group(
    "base",
    (),
    """Make, list and remove pinned bases: files below sessions that do not change when the machine does.

    'waypoint shell --base BASE' starts a session on one. Its checkpoints and forks have the same base.""",
    "Example: waypoint base create debian --from /srv/bookworm && waypoint shell --base debian",
    (_BASE_CREATE, _BASE_LIST, _BASE_RM, _BASE_SHOW),
)

_LAYER_LIST = Verb(
    "layer list",
    (JSON, HOME),
    """List the layers of the capture NAME: files, processes, shell, terminal, and the attached layers.""",
    "Example: waypoint layer list ready",
    arguments=(NAME,),
)

_LAYER_ATTACH = Verb(
    "layer attach",
    (
        Option(("--wait",), "flag", "Wait until the new capture is durable: stored, so that it survives a power loss."),
        JSON,
        HOME,
    ),
    """Attach a file or directory of this machine to the capture NAME.

    NAME is a checkpoint or a branch. A capture never changes: NAME moves to a copy of its capture that has the same
    processes and files, and the layer KIND in addition, or in place of a layer of this kind. 'waypoint undo' moves NAME
    back. A running session is not affected. KIND is a word of your choice, such as model, cache or trace.""",
    "Example: waypoint layer attach ready trace=./trace.jsonl",
    arguments=(NAME, Argument("layer", "KIND=PATH")),
)

_LAYER_GET = Verb(
    "layer get",
    (JSON, HOME),
    """Copy an attached layer of the capture NAME to DEST on this machine.

    KIND is the word that was given to 'waypoint checkpoint --attach KIND=PATH'; 'waypoint layer list' shows it. DEST
    must not exist.""",
    "Example: waypoint layer get ready model ./model",
    arguments=(NAME, Argument("kind", "KIND"), Argument("dest", "DEST")),
)

_LAYER = Group(
    "layer",
    (),
    """List the layers of a capture, attach a layer, or copy an attached layer to this machine.

    A layer is one part of a capture. Every capture has layers of Waypoint, such as files and processes; 'waypoint
    checkpoint --attach' and 'waypoint layer attach' add files and directories of this machine as attached layers.""",
    "Example: waypoint layer list ready",
    (_LAYER_ATTACH, _LAYER_GET, _LAYER_LIST),
)

_PROVE = Verb(
    "prove",
    (JSON, HOME),
    """Test whether the processes of checkpoints can be restored.

    Restores the processes of each NAME beside the running sessions, compares them and their open files with the
    checkpoint, and removes them. The restored processes never run, reach no network and write no file. The result is
    kept: 'waypoint show' and 'waypoint log' print it.

    Exit status 5 if the processes of a NAME cannot be restored, or differ; the reasons are printed on stderr.""",
    "Example: waypoint prove before-upgrade",
    arguments=(Argument("names", "NAME", many=True),),
)

_RM = Verb(
    "rm",
    (
        Option(("--now",), "flag", "Also free the space of the captures at once. This cannot be undone."),
        JSON,
        HOME,
    ),
    """Remove names of checkpoints and branches.

    Removes either all of them or none. A branch with a running session cannot be removed. The captures themselves stay:
    you can use their ids, and 'waypoint undo' restores the names, until 'waypoint gc' removes the captures. With --now
    they are removed at once: the capture of each checkpoint, and all captures of each branch, unless another name or
    session needs them.""",
    "Example: waypoint rm before-upgrade; waypoint rm --now fix-1",
    arguments=(Argument("names", "NAME", many=True),),
)

_REWIND = Verb(
    "rewind",
    (
        Option(("-n", "--number"), "number", "Go back by N points; 1 is the newest.", "N"),
        Option(
            ("--only",),
            "choice",
            "Bring back only the files (the programs continue), or only the agent's conversation.",
            choices=("files", "conversation"),
        ),
        Option(("--list",), "flag", "Only list the points, the newest first."),
        BRANCH,
        fast.LOSE_PROCESSES,
        JSON,
        HOME,
    ),
    """Go back to a point of the branch: to the moment before a prompt or a command.

    Points are made by 'waypoint point', which agents call before each prompt; named checkpoints of the branch count,
    too. Without -n, choose the point on the terminal: Up and Down move, Enter rewinds, q leaves everything as it is.

    Brings back files, programs, shell and terminal, as 'waypoint restore' does, and the file of the agent's
    conversation if the point knows it; the replaced conversation is kept beside it. Prints the prompt on stdout. The
    state from before is captured first: 'waypoint undo' reverses the rewind, except for the conversation of an agent
    outside of the session. With --json and without -n, prints the points.""",
    "Example: waypoint rewind -n 1 -b fix-1; waypoint rewind --list",
    arguments=(ONE_BRANCH,),
)

_UNDO = Verb(
    "undo",
    (
        Option(("-b", "--branch"), "text", "Undo the last operation on BRANCH (default: $WAYPOINT_BRANCH).", "BRANCH"),
        fast.LOSE_PROCESSES,
        Option(("--force",), "flag", "Undo of an apply: also replace files that were changed after it."),
        JSON,
        HOME,
    ),
    """Undo operation N of 'waypoint op log', or the last operation.

    Each name points again to the capture that it had before the operation. A session that the operation ended or
    replaced is started again from its capture; a session that the operation started is ended. Before undo replaces or
    ends a session, it captures this session with its processes; if that is impossible, the exit status is 5 (see
    --lose-processes). What cannot be restored is printed on stderr first.

    The undo of 'waypoint apply' puts the former files back. If one of them was changed after the apply, the undo
    changes nothing, and the exit status is 6; with --force it replaces this file, too.

    Without N, 'waypoint undo' chooses the last one of these operations:

    - With a branch (--branch, $WAYPOINT_BRANCH, or inside a session): operations on this branch, and operations that
    were requested inside its session, or by a caller whose $WAYPOINT_BRANCH is this branch.

    - Without a branch: operations that you requested from this terminal or from a terminal that is closed now, and
    operations that were requested inside the session of main.

    - All other operations can be undone by their number only. Unless you are root or have full trust, this includes all
    operations of other users.

    A second 'waypoint undo' goes one operation further back, as in an editor. An undo is itself an operation: to
    reverse it, undo its number.""",
    "Example: waypoint undo -b fix-1; waypoint op log -n 5 && waypoint undo 17",
    arguments=(Argument("number", "N", required=False, is_number=True),),
)

_VERIFY = Verb(
    "verify",
    (
        Option(("--read-data",), "flag", "Read every byte of the store; without it, only what describes the content."),
        JSON,
        HOME,
    ),
    """Look for damage in the store of images.

    Checkpoints and the latest captures of branches are stored, in the background, in a store that survives a power
    loss. This command tests whether each of them can be restored from there. Damage is printed with the names
    concerned; the exit status is 10 then. Captures that are also on disk outside of the store are stored again, in the
    background; else the next checkpoint that has the damaged parts stores these again.""",
    "Example: waypoint verify --read-data",
)

_EVICT = Verb(
    "evict",
    (Option(("--all",), "flag", "All checkpoints, and the latest captures of all branches."), JSON, HOME),
    """Remove the copies of captures outside of the store.

    A capture is kept as it was taken, so that a restore takes milliseconds, and in the store, where equal data of all
    captures is kept once. This command removes the first of them, after storing the capture if necessary. A restore
    then extracts the capture from the store again, which takes longer. Running sessions are not affected.""",
    "Example: waypoint evict before-upgrade; waypoint evict --all",
    arguments=(Argument("names", "NAME", required=False, many=True),),
)

_EXPORT = Verb(
    "export",
    (
        Option(("--sign",), "text", "Sign the archive with the Ed25519 private key in the file KEY (PEM).", "KEY"),
        Option(("--no-oci-layers",), "flag", "Leave out the layers for other tools; about half as many bytes."),
        JSON,
        HOME,
    ),
    """Write the capture NAME and its ancestors to FILE.

    FILE must not exist; only you can read it. It has everything that is restored from NAME, on this machine or another:
    files, processes with their memory, the terminal, attached layers. It is an OCI image layout in a tar archive, so
    that tools for container images can show it: 'skopeo inspect oci-archive:FILE'.

    'waypoint import FILE' reads it. 'openssl genpkey -algorithm ed25519' makes a key.""",
    "Example: waypoint export before-upgrade /tmp/before-upgrade.tar",
    arguments=(NAME, Argument("file", "FILE")),
)

_IMPORT = Verb(
    "import",
    (
        Option(("--as",), "text", "Name the exported checkpoint NEW, and no other.", "NEW"),
        Option(("--prefix",), "text", "Put PREFIX in front of all names.", "PREFIX"),
        Option(
            ("--require-signature",),
            "text",
            "Refuse FILE unless it was signed with the private key of the Ed25519 public key in the file KEY (PEM).",
            "KEY",
        ),
        JSON,
        HOME,
    ),
    """Import FILE, which 'waypoint export' has made.

    The whole FILE is checked first; if anything in it is wrong, or a name in it is taken, nothing is kept. The exported
    checkpoint and those before it keep their names. 'waypoint restore NAME --new BRANCH' then starts a session from it.
    Processes can be restored if this machine has the kernel and the processor features of the other one; otherwise
    programs are started again.

    Sessions from an imported checkpoint run with the user, base and directories of the machine (--bind) that it names;
    these are printed. So only root, and users whom root trusts fully, may import.""",
    "Example: waypoint import /tmp/before-upgrade.tar",
    arguments=(Argument("file", "FILE"),),
)

_GC = Verb(
    "gc",
    (
        Option(("--keep-operations",), "text", "Keep what is needed to undo operations up to this age.", "AGE"),
        Option(("--keep-last",), "number", "Keep the last N captures of each branch.", "N"),
        Option(("--keep-daily",), "number", "Keep the last capture of each of the last N days, of each branch.", "N"),
        Option(
            ("--hot-budget",), "size", "Evict captures that are in the store, while all take more than SIZE.", "SIZE"
        ),
        Option(
            ("--undo-budget",),
            "size",
            "Make the oldest operations final, while captures that only undo needs take more than SIZE.",
            "SIZE",
        ),
        Option(("--dry-run",), "flag", "Remove nothing; list what would be removed, and why others are kept."),
        Option(("--compact",), "flag", "Also make the pool smaller; fails if sessions are running."),
        JSON,
        HOME,
    ),
    """Remove captures that are not needed any more, and free their space.

    A capture is needed if it is the latest of a branch, if it is a checkpoint, or if 'waypoint undo' needs it for an
    operation of the last 7 days (see --keep-operations). With --keep-last and --keep-daily, captures without a name are
    kept, too; days without a capture do not count. The parents of a needed capture stay in the log, but without
    their content. Also removes files in the home that belong to no capture and no session.

    A user who is not root removes what nothing needs, of all users; with --keep-operations also what only the undo of
    the user's own older operations needs. To remove names and their captures at once: 'waypoint rm --now'.

    Captures that only undo needs are stored, which saves what has not changed, and evicted ('waypoint evict'): an undo
    that needs one takes longer then. If they still take more than a tenth of the disk (see --undo-budget here and of
    'waypoint setup'), the oldest operations can no longer be undone.

    Also evicts other captures, the least recently used first, while all captures outside of the store take more than a
    quarter of the disk (see --hot-budget, and hot_budget_bytes in config.json). The daemon does all of this by itself,
    too, but leaves up to 1 GiB of captures for undo outside of the store.

    Prints what holds the rest of the space, and which command frees it.

    The home stores files in a pool, which on most file systems is one large file. The pool becomes smaller only while
    no session is running: by this command, or some seconds after the last session has ended. Until then, sessions can
    use the space that was freed inside the pool.

    AGE is a number and s, m, h, d or w: 12h, 30d.""",
    "Example: waypoint gc --dry-run; waypoint gc --keep-operations 12h --keep-last 3 --keep-daily 7",
)

_DU = Verb(
    "du",
    (JSON, HOME),
    """Show how much disk space captures and sessions use.

    Shows all captures and sessions and the totals of the home; with NAMEs, only those captures and sessions. FILES is
    the size of the changed files. OWN FILES is the part of them that no other capture or session contains: the space
    that is freed when this capture or session is removed. PROCESSES is the size of saved processes and terminals.
    "-" stands for files that cannot be measured within 30 seconds.""",
    "Example: waypoint du; waypoint du before-upgrade --json",
    arguments=(Argument("names", "NAME", required=False, many=True),),
)

_OP_LOG = Verb(
    "op log",
    (
        Option(
            ("-b", "--branch"),
            "text",
            "List only operations on BRANCH, and those that were requested in its session.",
            "BRANCH",
        ),
        Option(("-n", "--limit"), "number", "List at most N operations.", "N"),
        JSON,
        HOME,
    ),
    """List operations, the newest first.

    Shows for each operation what it changed, and what 'waypoint undo' of its number would do, or why it cannot be
    undone.""",
    "Example: waypoint op log -n 10 && waypoint undo 17",
)

_OP = Group(
    "op",
    (),
    """Show the log of operations.

    Each operation that changed a name or a session has a number, which 'waypoint undo' takes.""",
    "Example: waypoint op log -n 10",
    (_OP_LOG,),
)

_DAEMON_LOGS = Verb(
    "daemon logs",
    (
        Option(("-f", "--follow"), "flag", "Continue with new lines as they come."),
        Option(("-n", "--limit"), "number", "Print at most the last N lines.", "N"),
        HOME,
    ),
    """Print the log of the daemon and its supervisor.

    The log is in the home: daemon.log, and the older daemon.log.1, each of at most 4 MiB. Only root can read it. Works
    without a running daemon.""",
    "Example: waypoint daemon logs -n 50 -f",
)

_DAEMON_RUN = Verb(
    "daemon run",
    (HOME,),
    """Start the daemon, and wait until it is stopped.

    If the daemon is already running, this command only waits until it is stopped. SIGTERM and Ctrl-C to this command
    stop the daemon; sessions continue.""",
    "Example, in a service: ExecStart=waypoint daemon run",
)

_DAEMON_STATUS = Verb(
    "daemon status",
    (JSON, HOME),
    """Show whether the daemon is running.

    Exit status 4 if it is not.""",
    "Example: waypoint daemon status --json",
)

_DAEMON_STOP = Verb(
    "daemon stop",
    (HOME,),
    """Stop the daemon.

    Sessions continue; attached terminals are detached. The next command starts the daemon again. Only root, and a user
    with `setup --trust full`, may stop it.""",
    "Example: waypoint daemon stop",
)

_DAEMON = Group(
    "daemon",
    (),
    """Manage the daemon, the process that serves sessions.

    The daemon starts when a command needs it, and is started again if it dies.""",
    "Example: waypoint daemon status",
    (_DAEMON_LOGS, _DAEMON_RUN, _DAEMON_STATUS, _DAEMON_STOP),
)

WAYPOINT = Group(
    "",
    (
        HOME,
        Option(("--json",), "flag", "Print one JSON value, if the command can."),
        Option(("--version",), "flag", "Show the version and exit."),
    ),
    """Terminal sessions whose whole state can be saved, restored and branched.

    A session is a shell on a copy-on-write view of this machine. It continues when you close your terminal, and people
    and programs can use it together.

    A capture saves the files, processes and terminal of a session. A checkpoint is a capture with a name. From one
    checkpoint you can start any number of sessions. Each session runs on a branch; the branch keeps the files when its
    session ends. Captures and sessions are stored in one folder, the home.""",
    "To begin: sudo waypoint setup, then waypoint shell. 'waypoint COMMAND --help' has an example of each command.",
    (
        *(_SETUP, _DOCTOR, fast.SHELL, _ATTACH, fast.EXEC, fast.RUN, _LOGS, _PS, _PORT, _STOP),
        *(
            fast.CHECKPOINT,
            fast.POINT,
            fast.RESTORE,
            fast.FORK,
            _BRANCH,
            _LOG,
            _LIST,
            _SHOW,
            _SEARCH,
            _HANDOFF,
            _DIFF,
            _APPLY,
            *(_CP, _CAT, _LS, _MOUNT, _UMOUNT),
            _LAYER,
            _BASE,
            _PROVE,
            _RM,
            _REWIND,
            _UNDO,
            _OP,
            _VERIFY,
            _EVICT,
            _EXPORT,
            _IMPORT,
            _GC,
            _DU,
            _EVENTS,
            _PROFILE,
            _ADOPT,
            _MCP,
            _GUIDE,
            _INSTALL,
            _UNINSTALL,
            _DAEMON,
        ),
    ),
)
"""The whole command line: the options before the first verb, and all verbs."""

_DOCTOR_INSIDE = Verb(
    _DOCTOR.name,
    tuple(option for option in _DOCTOR.options if option is not HOME),
    """Show what a checkpoint of this session can keep.

    Lists the processes of this session, the tier at which a checkpoint can save each of them ('waypoint checkpoint
    --help' explains tiers), and the reason if this is not `live`. Outside of sessions, doctor checks the machine.""",
    "Example: waypoint doctor",
    arguments=_DOCTOR.arguments,
)

_REWIND_INSIDE = Verb(
    _REWIND.name,
    (
        Option(("-n", "--number"), "number", "Go back by N points; 1 is the newest.", "N"),
        Option(("--only",), "choice", "Bring back only the files; the programs continue.", choices=("files",)),
        Option(("--list",), "flag", "Only list the points, the newest first; the same without -n."),
        fast.LOSE_PROCESSES,
        JSON,
    ),
    """Go back to a point of this session's branch: to the moment before a prompt or a command.

    Points are made by 'waypoint point', which agents call before each prompt; named checkpoints of the branch count,
    too. The session is replaced by its state at that point, with the programs and the files of that moment, also those
    in which agents keep their conversations. The state from before is captured first: 'waypoint undo' reverses the
    rewind.""",
    "Example: waypoint rewind --list; waypoint rewind -n 2",
)

_STOP_INSIDE = Verb(
    _STOP.name,
    tuple(option for option in _STOP.options if option.flags[-1] in ("--branch", "--checkpoint", "--files", "--json")),
    """End this session, and keep its files and programs.

    Saves the processes with their memory, if possible, else the command lines of the programs, else the files only.
    'waypoint shell BRANCH' outside of the session continues it; with --files, with a new shell.""",
    "Example: waypoint stop",
    arguments=_STOP.arguments,
)

_STATUS = Verb(
    "status",
    (JSON,),
    """Show this session's branch, and the capture from which it continues.""",
    "Example: waypoint status",
)


_FORK_INSIDE = """Start sessions on new branches, each a copy of the capture NAME.

    Either all of the sessions start, or none. If NAME is this session's branch, the session is captured now. Prints the
    names of the new branches. Tiers: see 'waypoint restore --help'."""

_UNDO_INSIDE = """Undo operation N of 'waypoint op log', or the last operation on this session's branch.

    The branch, and the names that the operation moved, point again to the captures that they had before the operation.
    If the operation replaced the session, the session from before is started again from its capture. Before undo
    replaces or ends a session, it captures this session with its processes; if that is impossible, the exit status is 5
    (see --lose-processes). If something would be lost, undo lists it and changes nothing without this option.

    Only operations on this branch alone, and those that were requested in the session, can be undone here. A second
    'waypoint undo' goes one operation further back, as in an editor. An undo is itself an operation: to reverse it,
    undo its number."""


def _inside(verb: Verb, *flags: str, text: str = "", example: str = "") -> Verb:
    """`verb` as it works inside a session: with the options `flags` only. `text`, `example`: what its help has in place
    of those of `verb`, which mention other options.
    """
    options = tuple(option for option in verb.options if option.flags[-1] in flags)
    epilog = f"Example: {example}" if example else verb.epilog
    return Verb(verb.name, options, text or verb.help, epilog, arguments=verb.arguments)


INSIDE: tuple[Verb, ...] = (
    _inside(fast.CHECKPOINT, "--message", "--tier", "--force", "--json"),
    _inside(fast.POINT, "--label", "--conversation", "--json", example="waypoint point --label 'make the tests pass'"),
    _inside(fast.RESTORE, "--branch", "--new", "--only", "--tier", "--lose-processes", "--json"),
    _inside(
        *(fast.FORK, "--count", "--prefix", "--tier", "--json"), text=_FORK_INSIDE, example="waypoint fork ready -n 3"
    ),
    _REWIND_INSIDE,
    _inside(
        _UNDO,
        *("--branch", "--lose-processes", "--json"),
        text=_UNDO_INSIDE,
        example="waypoint undo; waypoint op log -n 5 && waypoint undo 17",
    ),
    _inside(_LOG, "--branch", "--limit", "--json", example="waypoint log -n 5"),
    _inside(_SHOW, "--json"),
    _inside(_OP_LOG, "--branch", "--limit", "--json"),
    _inside(_PS, "--json", example="waypoint ps --json"),
    _inside(_LOGS, "--branch", example="waypoint logs"),
    _DOCTOR_INSIDE,
    _STATUS,
    _STOP_INSIDE,
)
"""The verbs that work inside a session, with the options that make sense for the session's own branch. A session can
end itself, but cannot delete its files.
"""


def find(argv: "Sequence[str]") -> tuple[Verb, list[str]]:
    """Return the verb that the first words of `argv` name, and the words after it, headed by the options given before
    it (`--home DIR ps`). A group if none of its members is named.

    Raises UsageProblem for an unknown verb, or an unknown option before the verb.
    """
    verb: Verb = WAYPOINT
    before: list[str] = []
    rest = list(argv)
    while isinstance(verb, Group):
        place = _skip_options(verb, rest)
        before += rest[:place]
        if place == len(rest):
            return verb, before
        word, by_word = rest[place], verb.by_word
        if word not in by_word:
            raise wrong_usage(verb, word, f"there is no such command{did_you_mean(word, by_word)}")
        verb, rest = by_word[word], rest[place + 1 :]
    return verb, [*before, *rest]


def _skip_options(group: Group, words: list[str]) -> int:
    """Return the number of words at the beginning that are options of `group` and their values."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        option, _, behind = option_at(group, words, place)
        if option is None and words[place] not in HELP_FLAGS:
            raise no_such_option(group, words[place].partition("=")[0])
        place = behind
    return min(place, len(words))


def option_at(verb: Verb, words: "Sequence[str]", place: int) -> tuple[Option | None, str | None, int]:
    """Return the option at `place` (None if there is no option), its value if it has one, and the place after both."""
    word = words[place]
    flag, equals, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
    option = verb.by_flag.get(flag)
    if option is None or option.kind == "flag" or equals or value:
        return option, value, place + 1
    return option, words[place + 1] if place + 1 < len(words) else None, place + 2


def every_verb(group: Group = WAYPOINT) -> list[Verb]:
    """Return all verbs of `group` that do something by themselves, including the members of its groups."""
    found: list[Verb] = [group] if group.acts else []
    for member in group.members:
        found += every_verb(member) if isinstance(member, Group) else [member]
    return found


def first_sentence(verb: Verb) -> str:
    """Return the first sentence of the verb's help: what the verb does."""
    text = " ".join(verb.help.split("\n\n")[0].split())
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]
