"""The verbs of the fast path, which start without click. All other verbs are in `table`.

The command line's fast path loads this file, so it imports only the package `verbs` itself.
"""

from waypoint.model.verbs import LIMIT_BOUNDS, MAX_FORKS, Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Kind

BRANCH = Option(("-b", "--branch"), "text", "The session's branch (default: $WAYPOINT_BRANCH, else main).", "BRANCH")
HOME = Option(("--home",), "text", "The home to use (default: $WAYPOINT_HOME, else /var/lib/waypoint).", "DIR")
JSON = Option(("--json",), "flag", "Print one JSON value.")
LOSE_PROCESSES = Option(
    ("--lose-processes",), "flag", "Of a session that is replaced or ended, lose the processes that cannot be kept."
)
USER = Option(("--user",), "text", "Go on with the session of USER, who is not you.", "USER")
ENV = Option(("--env",), "texts", "Set an environment variable for it; may be repeated.", "NAME=VALUE")


def _limit(name: str, kind: "Kind", text: str, metavar: str) -> Option:
    least, most = LIMIT_BOUNDS[name]
    return Option((f"--{name}",), kind, f"{text} At least {least}.", metavar, bounds=f"{least} to {most}")


EXEC = Verb(
    "exec",
    (
        BRANCH,
        Option(("--timeout",), "positive seconds", "End the command S seconds after its start, exit 124.", "S"),
        Option(("--wait-prompt",), "seconds", "How long to wait for the shell's prompt (default: 5).", "S"),
        Option(("-t", "--tty"), "flag", "Connect the command to this terminal."),
        Option(("-i", "--interactive"), "flag", "Pass stdin on to the command (otherwise it reads /dev/null)."),
        Option(("--cwd",), "text", "Run in this directory (default: the shell's).", "DIR"),
        ENV,
        USER,
        Option(("--json",), "flag", "Print one JSON value when the command has ended."),
        HOME,
    ),
    """Run one command line in the session's own shell.

    The command's changes to the shell stay: directory, variables, functions, jobs. A single CMD is shell text, several
    are words that are quoted. stdout and stderr come as one stream. With --cwd or --env the command runs in a subshell,
    and nothing of it stays.

    A CMD that is `exit N` alone ends the session. One that ends the shell by the way (`cd x || exit 1`, `set -e`) does
    not: a new shell goes on in its place, with its variables, functions and directory, without `set -e`. What
    cannot be kept of them (more than 16 MiB, a full disk) is said. What was started in the background runs
    on, and is no job of the new shell. The session does end where CMD sets an EXIT trap, or becomes another program
    (`exec`), and in zsh by `set -e`, and there `exit` hangs jobs up, as always.

    Exit status: the command's; 124 after --timeout, 125 if waypoint itself failed. If the reader of stdout goes away,
    the command is interrupted and the status is 141. At its timeout the command gets SIGINT, then SIGTERM, then
    SIGKILL; half a second after the timeout the call returns in any case, and says which signal was the last. For an
    earlier command to end it waits no longer than the timeout, either; then it is not begun, and the status is 125. So
    it is if the shell does not begin it in that time. Three Ctrl-C within two seconds kill the command.""",
    "Example: waypoint exec 'cd /srv && export MODE=test' && waypoint exec make -j4",
    words="CMD",
)

RUN = Verb(
    "run",
    (
        BRANCH,
        Option(("-i", "--interactive"), "flag", "Pass stdin on to the process (otherwise it reads /dev/null)."),
        Option(("-t", "--tty"), "flag", "Give the process a terminal of its own."),
        Option(("--cwd",), "text", "Start in this directory (default: the session's).", "DIR"),
        ENV,
        USER,
        HOME,
    ),
    """Run a separate process in the session, apart from its shell.

    ARGV is a program, found by the session's PATH, and its arguments. stdout and stderr stay apart. Exit status: the
    process's; 127 if there is no such program, 126 if it cannot be executed, 125 if waypoint itself failed. If the
    reader of stdout goes away, the process gets SIGPIPE and the status is 141.""",
    "Example: waypoint run -it -- python3",
    words="ARGV",
)

LOWER_TIER = Option(
    ("--tier",),
    "choice",
    "Of the capture: not the processes, but start its programs again; or only files and the shell's state.",
    choices=("respawn", "files"),
)

ATTACH_AT = Option(("--attach-at",), "texts", "Write what is attached to a path in it.", "KIND=PATH")

SHELL = Verb(
    "shell",
    (
        Option(
            ("--from",),
            "text",
            "Go on from NAME, with its programs if it keeps them (default: the branch's own last state).",
            "NAME",
        ),
        LOWER_TIER,
        Option(("--base",), "text", "The root file system under the session (default: this machine's).", "DIR"),
        Option(("--bind",), "texts", "Share a path of this machine as it is.", "HOST:PATH[:ro]"),
        Option(
            ("--net",),
            "choice",
            "The session's network (default: private, with a way out to the public); `from`: that of --from NAME.",
            choices=("private", "host", "none", "from"),
        ),
        Option(("--allow-net",), "texts", "Reach only these (names and networks).", "LIST"),
        Option(("--publish",), "texts", "Lead a port of this machine into it.", "[IP:]HOST:INNER[/udp]"),
        Option(
            ("--allow",), "choice", "Let its processes also make namespaces and mounts (userns).", choices=("userns",)
        ),
        Option(("--user",), "text", "Whose session it is (default: you, also under sudo).", "USER"),
        Option(("--cwd",), "text", "Where the shell starts (default: here).", "DIR"),
        Option(("--shell",), "text", "The shell, by its path or name (default: $SHELL, else the user's).", "SHELL"),
        _limit("memory", "size", "Memory at most (default: three quarters of the machine's).", "SIZE"),
        _limit("cpus", "amount", "Processors at most, such as 1.5 (default: all).", "N"),
        _limit("pids", "number", "Processes and threads at most (default: 4096).", "N"),
        _limit("disk", "size", "What it may write to disk at most (default: as much as there is).", "SIZE"),
        Option(("-d", "--detach"), "flag", "Start the session and print its branch; do not show it."),
        JSON,
        BRANCH,
        HOME,
    ),
    """Start the branch's session, or attach to it if it is live.

    A session works on a copy-on-write view of the machine. When its shell is left, the session ends and its files are
    kept; the next 'waypoint shell BRANCH' goes on from these files. Of a branch that was parked (checkpoint --park) all
    programs come back. Ctrl-] d leaves the session running. bash and zsh show the branch in their prompts, unless
    WAYPOINT_PROMPT is `off`; in another shell 'waypoint exec' is refused. CMD, a program and its arguments, runs in the
    shell's place; a single CMD with spaces or such in it is shell text, which sh runs.
    Processes in a session cannot make namespaces or mounts, which most sandboxes of programs need (bubblewrap, that of
    Chromium): with `--allow userns` they can, as ordinary users of the machine can, but for cgroup namespaces (in place
    of `bwrap --unshare-all` name the others one by one). The branch keeps it.

    A branch belongs to the user it was started as ('waypoint ps' shows whose it is). Whoever goes on with a branch of
    somebody else says so with --user, but for root; only root may, and a user whom root trusts fully.

    Networks: a `private` one has its own loopback, and reaches what is public, by names too; not the machine, other
    sessions, nor private networks. With `--allow-net pypi.org,10.1.0.0/16` it reaches these and nothing else; names are
    looked up again each minute. Without passt and nftables there is no way out. `none` is loopback and no more. A copy
    (fork, restore) has the connections to other machines reset. On that of the `host` all is reached that the machine
    reaches, and what listens on the machine itself; the session's root has no rights over it, so there is no
    ping, and no port below 1024. A branch keeps its network until one is given at its next start (`--net private`: all
    that is public again). With --from it has that of NAME only if told so (`--net from`); what NAME's
    --allow-net does not let it reach, it does not reach either, unless asked for. What is bound is the machine's own:
    where root has asked for the session, root writes there as root, set-uid programs too.

    `--publish 8080:80` leads port 8080 of this machine (of its loopback, if no IP is given) to port 80 of the session,
    on its own address or its loopback, of IPv4 or IPv6; TCP, and with `--publish 53:53/udp` UDP. The session sees
    10.77.0.3 or fd10:77::3 as the other side. A branch keeps its ports, a restore that replaces its session takes them
    over, a fork does not have them; with `--publish none` the branch has none any more. Ports below 1024 are root's.

    Limits (SIZE: 512M, 2G) go with the branch: what goes on from its captures has them, and 'waypoint show' tells them.
    Where the machine cannot hold one that is asked for, that is said. What checkpoints and forks hold of what a session
    has written counts for its --disk, also when the session removes it, until it is stopped and started, or restored.
    A live session has its options: others are refused until it is parked or stopped. Parked, it takes other limits,
    --publish and --allow-net with its programs as they are; the rest with --tier respawn. Exit status: the shell's.""",
    "Example: waypoint shell fix-1 --bind ~/project:/project; waypoint shell ci -d --net none -- make test",
    arguments=(Argument("argument", "BRANCH", required=False),),
    words="CMD",
)

NAME = Argument("name", "NAME")

CHECKPOINT = Verb(
    "checkpoint",
    (
        Option(("-m", "--message"), "text", "A note, kept with the checkpoint.", "MSG"),
        BRANCH,
        Option(
            ("--tier",),
            "choice",
            "The tier to keep, or fail with exit status 5 (default: auto, the best tier that is possible).",
            choices=("auto", "live", "respawn", "files"),
        ),
        Option(
            ("--park",), "flag", "Then end the session, which 'waypoint shell BRANCH' takes up; tier: live, or exit 5."
        ),
        LOSE_PROCESSES,
        Option(("--force",), "flag", "If a checkpoint has this name, move the name."),
        Option(("--attach",), "texts", "Keep a file or folder of this machine with it.", "KIND=PATH"),
        Option(("--wait",), "flag", "Then put it into the home's store, and return when it survives a power loss."),
        JSON,
        HOME,
    ),
    """Capture the session's files, processes and terminal, and name the capture NAME. The session goes on.

    Prints the name, the capture's id, its tier and how long the session stood still. Tiers: `live` keeps the processes
    as they are; `respawn` keeps what is needed to start the programs again, as some cannot be kept; `files` keeps
    neither. A program that cannot be kept alive is left out of a live capture, said, and started again in its copies.
    The shell's variables and functions are always kept. Anything that is kept less faithfully than it might be is told
    on stderr. An ordinary user's own home can keep no processes: there --park, too, keeps how to start them again.

    With --attach model=PATH (or cache, trace, effects, any name), the file or folder PATH of this machine is copied
    before, and is a part of the capture and of its image: 'waypoint layer list NAME' lists such layers, 'waypoint layer
    get' gives one back. What has not changed since the branch's last capture is not copied again. It may be repeated,
    once for a kind. If one cannot be read, no checkpoint is made; sockets, FIFOs, devices and Waypoint's homes are left
    out of a folder, and said. Inside a session PATH is the session's, from / on.

    With --wait, the capture and all that it goes on from are in the home's store on return, and the line has the id of
    the image at its end. If they cannot be put there, the checkpoint is made all the same.

    Asked for inside a session, the command returns once more in each copy of the session, also in the one that takes
    its place, and prints `restored BRANCH CAPTURE` there: a script that goes on to a restore must tell the two.""",
    "Example: case $(waypoint checkpoint ready) in restored*) ;; *) make test || waypoint restore ready ;; esac",
    arguments=(NAME,),
)

RESTORE = Verb(
    "restore",
    (
        Option(("-b", "--branch"), "text", "The branch to restore on (default: that of NAME).", "BRANCH"),
        Option(("--new",), "text", "Leave all branches as they are and restore on NEW, beside them.", "NEW"),
        LOWER_TIER,
        Option(("--only",), "choice", "Bring back only this aspect of the capture.", choices=("files", "shell")),
        ATTACH_AT,
        LOSE_PROCESSES,
        JSON,
        HOME,
    ),
    """Bring back the capture NAME in place of the session on a branch, or start the branch with it.

    NAME is a checkpoint, a branch, or a capture's id or its beginning. Its branch is the one that NAME was taken on; a
    branch is its own, and goes back to its last capture. On another branch, or with --new, a live branch is brought
    back as it is now: it is captured first. A session that is replaced is captured first, with its processes: exit
    status 5 if one of them cannot be kept. With --lose-processes all are kept that can be; so it is in an ordinary
    user's own home, where none can: the answer says so. 'waypoint undo' brings it back. Attached terminals stay
    attached. Prints the branch; on stderr what was brought back, and what was replaced.

    What cannot be brought back with its processes (a port or an address of the machine's network is taken, another
    processor) is with --tier: `respawn` starts the programs again, `files` none; both begin with a new shell, in the
    state of the captured one. 'waypoint shell BRANCH --tier respawn' takes another --net.

    With --attach-at model=/srv/model what is attached as model is written to that path in the session, in place of what
    is there, before its programs go on. It belongs to the session's user.

    With --only files the programs of a live session stand still until the files are back, which are copied one by
    one: some 5 s for a deleted folder of 50,000 files. The answer says how many files, how many bytes, and how
    long. What was changed is another file afterwards: programs that have the old one open go on with that, and are
    named.""",
    "Example: waypoint restore before-upgrade; waypoint restore before-upgrade --new retry",
    arguments=(NAME,),
)

FORK = Verb(
    "fork",
    (
        Option(("-n", "--count"), "number", "Make N branches, PREFIX-1 and so on.", "N", bounds=f"1 to {MAX_FORKS}"),
        Option(("--prefix",), "text", "The beginning of their names (default: NAME).", "PREFIX"),
        LOWER_TIER,
        ATTACH_AT,
        JSON,
        HOME,
    ),
    """Start live sessions on new branches, each a copy of the capture NAME; all of them or none.

    If NAME is a live branch, its session is captured now. --tier and --attach-at as for 'waypoint
    restore'. Prints the branches.

    With CMD, runs CMD in the shells of all new sessions at once, and prints their output, each line behind its branch.
    As with 'waypoint exec' a single CMD is shell text, several are words that are quoted. {i} (1, 2, ...) and {branch}
    in CMD are replaced. Exit status 1 if CMD fails in one of the sessions.

    A copy that ends, by itself too, leaves its branch with its files; 'waypoint branch delete' removes it.""",
    "Example: waypoint fork ready -n 3 -- 'make test SEED={i}'",
    arguments=(NAME, Argument("branches", "BRANCH", required=False, many=True)),
    words="CMD",
)

VERBS = {verb.name: verb for verb in (EXEC, RUN, SHELL, CHECKPOINT, RESTORE, FORK)}
