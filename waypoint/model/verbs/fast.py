"""The verbs of the fast path. All other verbs are in `table`.

The fast path loads this file, so it imports only the package `verbs` itself.
"""

from waypoint.model.verbs import LIMIT_BOUNDS, MAX_FORKS, Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Kind

BRANCH = Option(("-b", "--branch"), "text", "The session's branch (default: $WAYPOINT_BRANCH, else main).", "BRANCH")
HOME = Option(("--home",), "text", "The home to use (default: $WAYPOINT_HOME, else /var/lib/waypoint).", "DIR")
JSON = Option(("--json",), "flag", "Print one JSON value.")
LOSE_PROCESSES = Option(
    ("--lose-processes",), "flag", "Do not keep the processes of a session that is replaced or ended."
)
USER = Option(("--user",), "text", "The owner of the session, if that is another user.", "USER")
ENV = Option(("--env",), "texts", "Set an environment variable; may be repeated.", "NAME=VALUE")


def _limit(name: str, kind: "Kind", text: str, metavar: str) -> Option:
    least, most = LIMIT_BOUNDS[name]
    return Option((f"--{name}",), kind, f"{text} At least {least}.", metavar, bounds=f"{least} to {most}")


EXEC = Verb(
    "exec",
    (
        BRANCH,
        Option(("--timeout",), "positive seconds", "End the command after S seconds; exit status 124.", "S"),
        Option(("--wait-prompt",), "seconds", "How long to wait for the shell's prompt (default: 5).", "S"),
        Option(("-t", "--tty"), "flag", "Connect the command to this terminal."),
        Option(("-i", "--interactive"), "flag", "Pass stdin to the command (otherwise it reads /dev/null)."),
        Option(("--cwd",), "text", "Run in this directory (default: the shell's).", "DIR"),
        ENV,
        USER,
        Option(("--json",), "flag", "Print one JSON value when the command has ended."),
        HOME,
    ),
    """Run one command in the session's own shell.

    Changes to the shell stay: directory, variables, functions, jobs. A single CMD is shell text; if there are several,
    each is quoted as one word. stdout and stderr arrive as one stream. With --cwd or --env the command runs in a
    subshell, and its changes to the shell are lost.

    Exit status: the command's own; 124 after --timeout; 125 if waypoint itself failed; 141 if the reader of stdout is
    gone (the command is interrupted then).

    At its timeout the command gets SIGINT, then SIGTERM, then SIGKILL. waypoint returns at most half a second later and
    reports the last signal. The timeout also limits the wait for a busy shell: a command that did not start in that
    time is dropped, with exit status 125. Three Ctrl-C within two seconds kill the command.

    `exit N` as the whole command ends the session. A command that exits the shell in another way (`cd x || exit 1`,
    `set -e`) does not: a new shell takes over the variables, functions and directory, without `set -e`. If some of
    these cannot be taken over (more than 16 MiB, a full disk), that is reported. Background programs continue, but
    are not jobs of the new shell. Two things do end the session: an EXIT trap set by CMD, and `exec` of another
    program; in zsh also `set -e`. In these cases `exit` hangs up the jobs, as usual.""",
    "Example: waypoint exec 'cd /srv && export MODE=test' && waypoint exec make -j4",
    words="CMD",
)

RUN = Verb(
    "run",
    (
        BRANCH,
        Option(("-i", "--interactive"), "flag", "Pass stdin to the process (otherwise it reads /dev/null)."),
        Option(("-t", "--tty"), "flag", "Give the process a terminal of its own."),
        Option(("--cwd",), "text", "Start in this directory (default: the session's).", "DIR"),
        ENV,
        USER,
        HOME,
    ),
    """Run a separate process in the session, outside its shell.

    ARGV is a program, found through the session's PATH, and its arguments. stdout and stderr stay separate.

    Exit status: the process's own; 127 if there is no such program; 126 if it cannot be executed; 125 if waypoint
    itself failed; 141 if the reader of stdout is gone (the process gets SIGPIPE then).""",
    "Example: waypoint run -it -- python3",
    words="ARGV",
)

SHELL = Verb(
    "shell",
    (
        Option(("--from",), "text", "Continue from the files of NAME (default: the branch's own).", "NAME"),
        Option(("--base",), "text", "The root file system under the session (default: this machine's).", "DIR"),
        Option(("--bind",), "texts", "Share a path of this machine, without a copy.", "HOST:PATH[:ro]"),
        Option(("--net",), "choice", "The session's network (default: private).", choices=("private", "host", "none")),
        Option(("--allow-net",), "texts", "Reach only these names and networks.", "LIST"),
        Option(("--allow",), "choice", "Let processes create namespaces and mounts.", choices=("userns",)),
        Option(("--user",), "text", "The owner of the session (default: you, also under sudo).", "USER"),
        Option(("--cwd",), "text", "The directory in which the shell starts (default: this one).", "DIR"),
        Option(("--shell",), "text", "The path or name of the shell (default: $SHELL, else the user's).", "SHELL"),
        _limit("memory", "size", "The most memory (default: three quarters of the machine's).", "SIZE"),
        _limit("cpus", "amount", "The most processors, such as 1.5 (default: all).", "N"),
        _limit("pids", "number", "The most processes and threads (default: 4096).", "N"),
        _limit("disk", "size", "The most that the session may write to disk (default: no limit).", "SIZE"),
        Option(("-d", "--detach"), "flag", "Start the session and print its branch; do not attach."),
        JSON,
        BRANCH,
        HOME,
    ),
    """Start the branch's session, or attach to it if it is running.

    A session works on a copy-on-write view of this machine. When you leave its shell, the session ends and its files
    are kept: the next 'waypoint shell BRANCH' continues from them. Ctrl-] d detaches and leaves the session running.
    A running session keeps its options; other options are refused until it is stopped. CMD runs in place
    of the shell. Exit status: the shell's, or CMD's.

    Shell: bash and zsh show the branch in their prompts, unless WAYPOINT_PROMPT is `off`. With other shells 'waypoint
    exec' is refused.

    Network: `private` has its own loopback and reaches public addresses and names; it does not reach this machine,
    other sessions or private networks. Without passt and nftables it reaches nothing outside. `none` has its own
    loopback only. `host` is this machine's network, including all that listens on the machine; the session's root has
    no rights over it, so ping and ports below 1024 do not work. With `--allow-net pypi.org,10.1.0.0/16` the session
    reaches nothing else; names are looked up again each minute. In a copy of a session (fork, restore) the connections
    to other machines are reset. The branch keeps its network.

    Sharing: a path given with --bind is not copied. If root starts the session, root in the session writes there as
    root; set-uid programs work, too.

    Namespaces: processes cannot create namespaces or mounts, which the sandboxes of many programs need (bubblewrap,
    Chromium). With `--allow userns` they can, like ordinary users of this machine, except for cgroup namespaces (in
    place of `bwrap --unshare-all` name the others one by one). The branch keeps this setting.

    Owner: a branch belongs to the user whom it was started for; 'waypoint ps' shows this user. Only root, and a user
    whom root trusts fully, can use the branch of another user. All but root must name the owner with --user.

    Limits: a SIZE is such as 512M or 2G. The branch keeps its limits, and so do sessions started from its captures;
    'waypoint show' shows them. If this machine cannot enforce a limit, that is reported. Files that the session has
    deleted, but that checkpoints and forks still hold, count for --disk until the session is stopped or restored.""",
    "Example: waypoint shell fix-1 --bind ~/project:/project",
    arguments=(Argument("argument", "BRANCH", required=False),),
    words="CMD",
)

NAME = Argument("name", "NAME")

CHECKPOINT = Verb(
    "checkpoint",
    (
        Option(("-m", "--message"), "text", "A note that is kept with the checkpoint.", "MSG"),
        BRANCH,
        Option(
            ("--tier",),
            "choice",
            "The tier to reach, else exit status 5 (default: auto, the best that is possible).",
            choices=("auto", "live", "respawn", "files"),
        ),
        Option(("--park",), "flag", "End the session afterwards; 'waypoint shell BRANCH' resumes it. Needs tier live."),
        Option(("--force",), "flag", "If a checkpoint has this name already, move the name."),
        JSON,
        HOME,
    ),
    """Save the session's files, processes and terminal as checkpoint NAME.

    The session continues. Prints the name, the id of the capture, its tier, and how long the session was paused.
    Anything that could not be saved completely is reported on stderr.

    Tiers: `live` keeps the processes as they are; `respawn` keeps what is needed to start the programs again; `files`
    keeps no processes. Each tier keeps the shell's variables and functions.

    Inside a session the command returns again, in each session that is started from the checkpoint, and prints
    `restored BRANCH CAPTURE` there. A script that restores its own checkpoint must check for this output, or it loops:
    case $(waypoint checkpoint ready) in restored*) ;; *) make test || waypoint restore ready ;; esac""",
    "Example: waypoint checkpoint before-upgrade -m 'all tests pass'",
    arguments=(NAME,),
)

RESTORE = Verb(
    "restore",
    (
        Option(("-b", "--branch"), "text", "The branch to restore on (default: that of NAME).", "BRANCH"),
        Option(("--new",), "text", "Restore on the new branch NEW; all other branches stay as they are.", "NEW"),
        Option(("--only",), "choice", "Restore only this part of the capture.", choices=("files", "shell")),
        LOSE_PROCESSES,
        JSON,
        HOME,
    ),
    """Go back to the capture NAME, in place of the branch's session.

    NAME is a checkpoint, a branch, or the id of a capture (4 digits or more of it). Without --branch, it is restored on
    the branch where it was taken, or on NAME if that is a branch. If this branch has no running session, one is
    started.

    A running session is captured before it is replaced, with its processes. If that is impossible, nothing is replaced
    and the exit status is 5 (see --lose-processes). 'waypoint undo' brings the replaced session back. Attached
    terminals stay attached. Prints the branch, and on stderr what was replaced.

    With --only files the session's programs are paused until all files are copied back: some 5 s for a deleted
    directory of 50,000 files. The number of files and bytes and the length of the pause are printed.""",
    "Example: waypoint restore before-upgrade; waypoint restore before-upgrade --new retry",
    arguments=(NAME,),
)

FORK = Verb(
    "fork",
    (
        Option(("-n", "--count"), "number", "Make N branches, PREFIX-1 and so on.", "N", bounds=f"1 to {MAX_FORKS}"),
        Option(("--prefix",), "text", "The beginning of their names (default: NAME).", "PREFIX"),
        JSON,
        HOME,
    ),
    """Start sessions on new branches, each a copy of the capture NAME.

    All of them start, or none. If NAME is a branch with a running session, this session is captured now. Prints the
    branches.

    With CMD, runs CMD in the shells of all new sessions at the same time and prints their output; each line begins with
    the branch. As with 'waypoint exec', a single CMD is shell text; if there are several, each is quoted as one word.
    {i} (1, 2, ...) and {branch} in CMD are replaced. Exit status 1 if CMD fails in one of the sessions.

    A branch and its files stay when its session ends; 'waypoint branch delete' removes them.""",
    "Example: waypoint fork ready -n 3 -- 'make test SEED={i}'",
    arguments=(NAME, Argument("branches", "BRANCH", required=False, many=True)),
    words="CMD",
)

VERBS = {verb.name: verb for verb in (EXEC, RUN, SHELL, CHECKPOINT, RESTORE, FORK)}
