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
    ("--lose-processes",), "flag", "Keep the files, but not the processes, of a session that is replaced or ended."
)
USER = Option(("--user",), "text", "The owner of the session, if that is another user.", "USER")
JSON_AT_END = Option(("--json",), "flag", "Print one JSON value when the command has ended.")
NO_COLOR = Option(("--no-color",), "flag", "Ask the command for output without colours (NO_COLOR=1, TERM=dumb).")
ENV = Option(("--env",), "texts", "Set an environment variable; may be repeated.", "NAME=VALUE")


def _limit(name: str, kind: "Kind", text: str, metavar: str) -> Option:
    least, most = LIMIT_BOUNDS[name]
    return Option((f"--{name}",), kind, f"{text} At least {least}.", metavar, bounds=f"{least} to {most}")


def _limits(memory: str, cpus: str, pids: str, disk: str) -> tuple[Option, ...]:
    """The options of a session's limits, with their defaults in words."""
    return (
        _limit("memory", "size", f"Maximum memory (default: {memory}).", "SIZE"),
        _limit("cpus", "amount", f"Maximum number of processors, such as 1.5 (default: {cpus}).", "N"),
        _limit("pids", "number", f"Maximum number of processes and threads (default: {pids}).", "N"),
        _limit("disk", "size", f"Maximum size of the changed files on disk (default: {disk}).", "SIZE"),
    )


EXEC = Verb(
    "exec",
    (
        BRANCH,
        Option(("--timeout",), "positive seconds", "End the command after S seconds, with exit status 124.", "S"),
        Option(("--wait-prompt",), "seconds", "How long to wait for a busy shell (default: 5).", "S"),
        Option(("-t", "--tty"), "flag", "Connect the command to this terminal."),
        Option(("-i", "--interactive"), "flag", "Pass stdin to the command (otherwise it reads /dev/null)."),
        Option(("--cwd",), "text", "Run in this directory (default: the shell's).", "DIR"),
        ENV,
        NO_COLOR,
        USER,
        JSON_AT_END,
        HOME,
    ),
    """Run one command in the session's own shell.

    The shell keeps changes of its directory, variables, functions and jobs. A single CMD is shell text; several CMD are
    the words of one command, and each word is quoted. stdout and stderr arrive as one stream. With --cwd, --env or
    --no-color the command runs in a subshell, so its changes to the shell are lost.

    Exit status: that of the command; 124 after --timeout; 125 if waypoint itself failed; 141 if the reader of stdout
    has gone away (the command is then interrupted).

    Busy shell: while another 'waypoint exec' runs in the session, the command waits, at most for its --timeout. While
    any other program runs in the foreground, the command waits as long as --wait-prompt says. If the command cannot
    start in this time, it is not run, and the exit status is 125.

    Timeout: --timeout limits the wait for another 'waypoint exec', and then again the time of the command itself. At
    the timeout the command gets SIGINT, then SIGTERM, then SIGKILL; waypoint returns at most half a second later and
    reports the last signal. Three Ctrl-C within two seconds kill the command at any time.

    Leaving the shell: if `exit N` is the whole command, the session ends, with exit status N. If a command exits the
    shell in another way (`cd x || exit 1`, `set -e`), the session continues: a new shell takes over the variables,
    functions and directory, but not `set -e`. If it cannot take over all of them (more than 16 MiB, a full disk), this
    is reported. Background programs continue, but are not jobs of the new shell. But the session ends, and its jobs get
    SIGHUP, if the command has set an EXIT trap, has replaced the shell by a program that is no shell (`exec`), or has
    used `set -e` in zsh.""",
    "Example: waypoint exec 'cd /srv && export MODE=test' && waypoint exec make -j4",
    words="CMD",
)

RUN = Verb(
    "run",
    (
        BRANCH,
        Option(("--timeout",), "positive seconds", "End the process after S seconds, with exit status 124.", "S"),
        Option(("-i", "--interactive"), "flag", "Pass stdin to the process (otherwise it reads /dev/null)."),
        Option(("-t", "--tty"), "flag", "Give the process a terminal of its own."),
        Option(("--cwd",), "text", "Start in this directory (default: the session's).", "DIR"),
        ENV,
        NO_COLOR,
        USER,
        JSON_AT_END,
        HOME,
    ),
    """Run a separate process in the session, outside its shell.

    ARGV is a program, found through the session's PATH, and its arguments. stdout and stderr stay separate. At its
    --timeout the process and its process group get SIGINT, then SIGTERM, then SIGKILL.

    Exit status: that of the process; 124 after --timeout; 127 if there is no such program; 126 if it cannot be
    executed; 125 if waypoint itself failed; 141 if the reader of stdout has gone away (the process then gets
    SIGPIPE).""",
    "Example: waypoint run -it -- python3",
    words="ARGV",
)

SHELL = Verb(
    "shell",
    (
        Option(("--from",), "text", "Start with the files of NAME (default: those of the branch).", "NAME"),
        Option(
            ("--base",),
            "text",
            "The root file system under the session: a base of 'waypoint base', or a directory, whose path begins with "
            "/ or . (default: this machine's).",
            "BASE|DIR",
        ),
        Option(("--bind",), "texts", "Use a path of this machine directly, without a copy.", "HOST:PATH[:ro]"),
        Option(("--net",), "choice", "The session's network (default: private).", choices=("private", "host", "none")),
        Option(
            ("--publish",),
            "texts",
            "Forward a TCP port of this machine to a port of the session.",
            "[ADDR:]HOST:SESSION",
        ),
        Option(("--allow-net",), "texts", "Let the session reach only these names and networks.", "LIST"),
        Option(("--allow",), "choice", "Let processes create namespaces and mounts.", choices=("userns",)),
        Option(("--user",), "text", "The owner of the session (default: you, also under sudo).", "USER"),
        Option(("--cwd",), "text", "The directory in which the shell starts (default: this one).", "DIR"),
        Option(("--shell",), "text", "The path or name of the shell (default: $SHELL, else the user's).", "SHELL"),
        *_limits("three quarters of the machine's", "all", "4096", "no limit"),
        Option(("--auto",), "flag", "After each command, make a point to which 'waypoint rewind' can return."),
        Option(("--idle-park",), "text", "Park the session when nobody has used it for AGE, such as 30m.", "AGE"),
        Option(("--ttl",), "text", "Park the session AGE after its start, such as 12h.", "AGE"),
        Option(("-d", "--detach"), "flag", "Start the session and print its branch; do not attach."),
        JSON,
        BRANCH,
        HOME,
    ),
    """Start the branch's session, or attach to it if it is running.

    A session works on a copy-on-write view of this machine. When you leave its shell, the session ends and its files
    are kept: the next 'waypoint shell BRANCH' continues from them. Ctrl-] d detaches and leaves the session running.
    CMD runs in place of the shell. Exit status: that of the shell, or of CMD.

    Options: they apply when the session starts. If the session is already running, an option with another value is
    refused; to change it, stop the session first.

    Shell: bash and zsh show the branch in their prompts, unless WAYPOINT_PROMPT is `off`. 'waypoint exec' works with
    these two shells only.

    Network: with `private`, the session has a network of its own. It reaches public addresses and can look up names,
    but it reaches neither this machine nor other sessions nor private networks. Without passt and nftables it reaches
    nothing outside. With `--allow-net pypi.org,10.1.0.0/16` it reaches only these names and networks; the addresses of
    the names are looked up again each minute. With `none`, the session reaches nothing outside. With `host`, it uses
    the network of this machine, including all services on this machine; root in the session has no rights over this
    network, so ping and ports below 1024 do not work. In a copy of a session (fork, restore) the connections to other
    machines are reset. Later sessions of the branch have the same network.

    Ports: `--publish 8080:80` forwards connections to port 8080 of this machine, on its loopback addresses, to port 80
    of the session; 0 in place of 8080 takes a free port. With an address before it (`0.0.0.0:8080:80`), connections to
    this address. The ports stay with the branch, also when a restore replaces its session; forks get free ports.
    'waypoint port' lists them, and publishes more.

    Points: with --auto, the session is saved in the background when its shell has been at its prompt for 0.3 s after a
    command; 'waypoint rewind' goes back by these points. Later sessions of the branch do the same.

    Parking: with --idle-park, a session that nobody uses is saved with its processes, as by 'waypoint checkpoint
    --park', and takes no memory. The next exec, run, attach, shell, checkpoint or stop brings it back by itself. It is
    in use while a client is connected, while its terminal prints, or while its programs use more than a hundredth of a
    processor. If its processes cannot be saved, it continues. In a parked session no timer runs and no server answers.
    With --ttl the session ends in this way when AGE has passed since its start, even if it is in use; then only
    'waypoint shell BRANCH' continues it, for another AGE. Later sessions of the branch, and its forks, do the same; 0
    as AGE ends that.

    Bind: `--bind HOST:PATH` shows the path HOST of this machine at PATH in the session. Changes there are changes of
    this machine, and restore and undo do not reverse them. If root starts the session, root in the session writes there
    as root, and set-uid programs work there. With `:ro` the session cannot change files there, but it can use sockets
    and FIFOs, and lock files, with the rights of its user.

    Namespaces: the sandboxes of many programs (bubblewrap, Chromium) create namespaces and mounts, which a session
    forbids. With `--allow userns` processes may create them, as ordinary users of this machine may. Only cgroup
    namespaces stay forbidden, so name the other ones one by one in place of `bwrap --unshare-all`. Later sessions of
    the branch have the same setting.

    Owner: a branch belongs to the user for whom its session was started; 'waypoint ps' shows this user. Other users
    cannot use the branch, except for root and a user with `setup --trust full`. To use the branch of another user, a
    user with full trust, and root under sudo, must name its owner with --user.

    Limits: SIZE is a number with a unit, such as 512M or 2G. Later sessions of the branch, and sessions started from
    its captures, have the same limits; 'waypoint show' prints them. If this machine cannot enforce a limit, a message
    says so. The limit --disk counts a file that is deleted in the session as long as a checkpoint or fork of the
    session contains it; stopping or restoring the session ends this. It reserves nothing: all sessions share the
    free space of the disk, which df shows in the session.""",
    "Example: waypoint shell fix-1 --bind ~/project:/project",
    arguments=(Argument("argument", "BRANCH", required=False),),
    words="CMD",
)

NAME = Argument("name", "NAME")

TIER = Option(
    ("--tier",),
    "choice",
    "Require this tier, or exit with status 5 (default: auto, the best possible tier).",
    choices=("auto", "live", "respawn", "files"),
)

PROVE = Option(
    ("--prove",),
    "flag",
    "Then restore the processes as a test ('waypoint prove'). Exit status 5 if they are not as captured.",
)

CHECKPOINT = Verb(
    "checkpoint",
    (
        Option(("-m", "--message"), "text", "A note that is kept with the checkpoint.", "MSG"),
        BRANCH,
        TIER,
        Option(
            ("--attach",),
            "texts",
            "Attach a copy of the file or directory PATH of this machine to the checkpoint. KIND is a word of your "
            "choice, such as model, cache or trace. 'waypoint layer get' copies it back. May be repeated.",
            "KIND=PATH",
        ),
        PROVE,
        Option(("--wait",), "flag", "Return when the checkpoint is in the store and survives a power loss."),
        Option(("--park",), "flag", "Then end the session; 'waypoint shell BRANCH' continues it. Requires tier live."),
        Option(("--force",), "flag", "If a checkpoint NAME exists, replace it."),
        Option(("--anew",), "flag", "Save the session even if nothing has changed since its last capture."),
        JSON,
        HOME,
    ),
    """Save the session's files, processes and terminal as checkpoint NAME.

    Without NAME, the checkpoint is named after the branch, with the next number: main-3. If another branch has NAME,
    choose BRANCH/NAME, for which NAME stands on this branch. The session continues. Prints the name, the id of the
    capture, its tier, and how long the session was paused. Anything that could not be saved completely is reported on
    stderr.

    If nothing has changed since the session's last checkpoint, because no program of the session has run, NAME stands
    for the capture of that checkpoint, and the session is not paused. A session with --bind or --net host, or with more
    than 64 threads, is always saved, and so is one whose message, tier or attached files are others.

    Tiers: `live` saves the processes with their memory; `respawn` saves the command lines of the programs, which are
    started again after a restore; `files` saves no processes. Each tier saves the shell's variables and functions.

    Inside a session, the running 'waypoint checkpoint' is saved, too. So it returns twice: in the session, where it
    prints `checkpointed ...`, and in each session that is started from the checkpoint, where it prints `restored
    BRANCH CAPTURE`. A script that restores its own checkpoint must test for this output, or it never ends:
    case $(waypoint checkpoint ready) in restored*) ;; *) make test || waypoint restore ready ;; esac""",
    "Example: waypoint checkpoint before-upgrade -m 'all tests pass'",
    arguments=(Argument("name", "NAME", required=False),),
)

POINT = Verb(
    "point",
    (
        Option(("--label",), "text", "The prompt or command that comes next.", "MSG"),
        Option(
            ("--conversation",),
            "text",
            "The file in which the agent keeps its conversation; 'waypoint rewind' brings it back, too.",
            "PATH",
        ),
        BRANCH,
        JSON,
        HOME,
    ),
    """Make a point to which 'waypoint rewind' can return.

    For the hooks of an agent: call it before each prompt, and before commands that destroy something. The session is
    saved like a checkpoint without a name. If nothing has changed since its last capture, nothing is saved, and the
    point stands for this capture. Points are removed by age and number (see 'waypoint gc --help'); they are no
    operations for 'waypoint undo'. Prints the id of the capture, its tier, and how long the session was paused.""",
    "Example: waypoint point --label 'make the tests pass' -b fix-1",
)

ATTACH_AT = Option(
    ("--attach-at",),
    "texts",
    "Copy the layer KIND, attached with 'waypoint checkpoint --attach', to PATH in the new session. "
    "PATH must not exist there. May be repeated.",
    "KIND=PATH",
)

RESTORE = Verb(
    "restore",
    (
        Option(("-b", "--branch"), "text", "The branch whose session is replaced (default: see above).", "BRANCH"),
        Option(("--new",), "text", "Replace nothing; start a session on the new branch NEW.", "NEW"),
        Option(("--only",), "choice", "Restore only this part of the capture.", choices=("files", "shell")),
        TIER,
        ATTACH_AT,
        LOSE_PROCESSES,
        JSON,
        HOME,
    ),
    """Replace the session of a branch with the capture NAME.

    NAME is a checkpoint, the id of a capture (at least 4 of its digits), or a branch, which stands for its latest
    capture. Without --branch: if NAME is a branch, its session is replaced; otherwise the session of the branch on
    which the capture was taken. If the branch has no running session, one is started. With '-b fix', warm stands for
    the checkpoint fix/warm, unless warm itself was taken on fix.

    Before a running session is replaced, it is captured with its processes, so that 'waypoint undo' can restore it. If
    this is impossible, nothing is replaced and the exit status is 5 (see --lose-processes). Attached terminals stay
    attached. Prints the branch on stdout, and what was replaced on stderr.

    Tiers: `live` restores the processes with their memory; `respawn` starts the programs again, in a new shell with the
    variables and functions of the captured one; `files` starts only this shell. Without --tier, the best tier that the
    capture has and that works here is taken: if no CRIU works here, if the kernel or the processor is another one, or
    if CRIU has failed twice, the programs are started again, and a message on stderr says so.

    With --only files, the running programs continue after the restore. They are paused while the files are copied: some
    5 s for a deleted directory of 50,000 files. Prints the number of files and bytes and the length of the pause.""",
    "Example: waypoint restore before-upgrade; waypoint restore before-upgrade --new retry",
    arguments=(NAME,),
)

FORK = Verb(
    "fork",
    (
        Option(
            ("-n", "--count"),
            "number",
            "Start N sessions, on the branches PREFIX-1 to PREFIX-N.",
            "N",
            bounds=f"1 to {MAX_FORKS}",
        ),
        Option(("--prefix",), "text", "The beginning of the branch names (default: NAME).", "PREFIX"),
        Option(
            ("--keep",),
            "text",
            "With CMD and --score: make a checkpoint NEW of the session with the best score, and end the others; "
            "exit status 1 if no session has a score. 'waypoint apply NEW' brings its changes onto this machine.",
            "NEW",
        ),
        Option(
            ("--score",),
            "text",
            "With --keep: shell text that is run in each session in which CMD succeeded; its last word of output is a "
            "number, the highest is the best.",
            "CMD",
        ),
        Option(
            ("--timeout",), "positive seconds", "With CMD: end each CMD after S seconds, with exit status 124.", "S"
        ),
        *_limits(*("as in NAME",) * 4),
        TIER,
        ATTACH_AT,
        JSON,
        HOME,
    ),
    """Start sessions on new branches, each a copy of the capture NAME.

    Without CMD, either all of the sessions start, or none. If NAME is a branch with a running session, this session is
    captured now. Prints the names of the new branches. Tiers: see 'waypoint restore --help'.

    With CMD, runs CMD in the shells of all new sessions at the same time and prints their output; each line begins with
    the branch. As with 'waypoint exec', a single CMD is shell text; several CMD are the words of one command. {i} in
    CMD is replaced by the number of the session (1, 2, ...), {branch} by its branch. If a session cannot start, or CMD
    fails in it, the others continue, and the exit status is 1.

    Ctrl-C while sessions start ends them all and deletes their files; later it interrupts CMD in each, and the sessions
    continue to run.

    When a session ends, its branch and its files are kept; 'waypoint branch delete' removes them.""",
    "Example: waypoint fork ready -n 3 -- 'make test SEED={i}'",
    arguments=(NAME, Argument("branches", "BRANCH", required=False, many=True)),
    words="CMD",
)

VERBS = {verb.name: verb for verb in (EXEC, RUN, SHELL, CHECKPOINT, POINT, RESTORE, FORK)}
