"""The verbs about the files of captures and live sessions: read, copied, compared, attached."""

from waypoint.model.verbs import Argument, Group, Option, Verb
from waypoint.model.verbs.fast import HOME, JSON, NAME

CAT = Verb(
    "cat",
    (HOME,),
    """Print a file as NAME has it: byte for byte, of any size.

    NAME is a live branch, or stands for a capture, which may be in the store alone: then it is brought back first. A
    relative PATH begins in the folder in which the session starts. Links are followed as in the session, and lead
    nowhere else. What has no content of its own (a folder, a device, a FIFO, a file of /proc or /sys) is refused.

    What NAME has not changed is the machine's, as it is now: also where a restore of NAME brings back a file that its
    programs had, and that the machine has changed since.""",
    "Example: waypoint cat main:/etc/hosts; waypoint cat before-upgrade:report.txt > report.txt",
    arguments=(Argument("file", "NAME:PATH"),),
)

MOUNT = Verb(
    "mount",
    (JSON, HOME),
    """Mount the files of a capture at DIR, a folder of the machine, read-only, over the base as a session sees it. What
    'umount DIR' ends leaves nothing behind.

    NAME stands for a capture. It stays as long as it is mounted, also over a restart of the daemon: 'waypoint gc' and
    'waypoint evict' leave it alone. Files have the owners and modes that they have in the session, for all users of the
    machine; programs have no set-user-id bits, links lead where they lead on the machine. Where the capture has changes
    in several mounts of the machine's, so many are mounted below DIR ('umount -R DIR').

    What the capture has not changed is the machine's, as it is now (see 'waypoint cat --help').

    For root, and a user whom root trusts fully. All others copy what they need: 'waypoint cp'.""",
    "Example: waypoint mount before-upgrade /mnt && diff -r /mnt/etc /etc; umount /mnt",
    arguments=(NAME, Argument("folder", "DIR")),
)

CP = Verb(
    "cp",
    (JSON, HOME),
    """Copy a file or folder out of a capture or live session, or into a live session: one of SRC and DST is NAME:PATH.

    A folder is copied with all in it. If DST is a folder, SRC gets into it under its own name, else DST is the new
    name, and `-` stdout, for a file; SRC/. is what is in SRC. A relative PATH begins in the folder in which the session
    starts. The machine's side is read and written by this command, with your own rights; Waypoint's homes are left out.
    A path of the machine with a `:` is written ./a:b.

    Modes, times, holes, hard links and attributes of users (user.*) are kept; owners, if you are root. Out of a
    session no set-user-id bits are taken. Links are copied as links, none is followed below SRC or DST. A file is
    written beside its place, as .waypoint-cp-..., and gets its name when it is whole. What is neither a file, a folder
    nor a link, or cannot be read, is left out, said on stderr, and makes exit status 1.""",
    "Example: waypoint cp main:/srv/app ./app; waypoint cp patch.diff main:/srv/app/",
    arguments=(Argument("source", "SRC"), Argument("target", "DST")),
)

DIFF = Verb(
    "diff",
    (
        Option(("--stat",), "flag", "Tell the sizes of the files, and how many there are."),
        Option(("-p", "--patch"), "flag", "Show the lines of text files that differ."),
        Option(
            ("--machine",),
            "flag",
            "Compare NAME with what is under it, which is this machine unless it has another base.",
        ),
        Option(("--exit-code",), "flag", "Exit status 1 if something differs."),
        JSON,
        HOME,
    ),
    """Say what differs: files, programs, variables that the shells hand on.

    Files are told as by git: A added, M changed, D removed, T of another type, R moved; m stands for another owner,
    other permissions or attributes.

    With one NAME: of a branch, what its session, or its last capture, has changed of this machine; of a checkpoint,
    what has changed on its branch since. With two: from the first to the second. A branch with a live session means
    this session as it is now. With PATHs, as the session has them, only what is there, or
    below; exit status 2 for one that neither side has. Where the base is not this machine's root, but DIR of 'shell
    --base DIR', and is compared with, that is said ("onto DIR").""",
    "Example: waypoint diff main; waypoint diff before main --patch -- /etc; waypoint diff before --machine --stat",
    arguments=(
        Argument("name", "NAME"),
        Argument("other", "OTHER", required=False),
    ),
    words="PATH",
)

APPLY = Verb(
    "apply",
    (
        Option(("--dry-run",), "flag", "Do nothing, say what would be done."),
        Option(("--force",), "flag", "Replace files that the machine has changed since; the undo brings them back."),
        JSON,
        HOME,
    ),
    """Put what a branch has changed onto the machine: all of it or, if something forbids a part, nothing.

    NAME is a branch (default: $WAYPOINT_BRANCH, else main), a checkpoint, or a capture's id or its beginning; a live
    session is captured first. Content, owner, mode, times, attributes and links become as in the session; what it has
    removed is removed. Binds are the machine's own already; /run, /dev, /proc, /sys and Waypoint's homes stay as they
    are.

    It writes into the branch's base: the machine's root, or of a branch of 'shell --base DIR' DIR, which is said
    ("onto DIR"). All paths are as the session has them: there /etc is DIR/etc. With PATHs, absolute or from the folder
    in which you are, whose path is taken as the session's, only what is at or below them.

    Exit status 6, with a list, where the machine's file was changed after the branch began, unless to the same or by an
    earlier apply of this branch; 'git status' changes .git/index. With --force such files are replaced, and told; what
    cannot be replaced, or put together, stays refused.

    'waypoint undo' takes it back (with --force also where somebody has changed a file since), and 'op log' keeps the
    operation. Only root may, and a user whom root trusts fully; never a process of a session.""",
    "Example: waypoint apply fix-1 --dry-run; waypoint apply fix-1 -- src docs; waypoint undo",
    arguments=(Argument("argument", "NAME", required=False),),
    words="PATH",
)

LAYER_ATTACH = Verb(
    "layer attach",
    (JSON, HOME),
    """Attach files and folders of this machine, or inside a session of the session, to the capture that NAME stands
    for, a checkpoint or a branch that is not live.

    A capture never changes: a new one goes on from it, with all that it has and with what is attached, in place of
    what had the same KIND. NAME stands for the new one; 'waypoint undo' takes that back.""",
    "Example: waypoint layer attach before-upgrade effects=effects.jsonl",
    arguments=(NAME, Argument("attach", "KIND=PATH", many=True)),
)

LAYER_LIST = Verb(
    "layer list",
    (JSON, HOME),
    """List what is attached to the capture that NAME stands for: kind, size, number of files, and the digest that it
    has in the store, from when it is there.

    It was attached by 'waypoint checkpoint --attach', or 'waypoint layer attach'.""",
    "Example: waypoint layer list before-upgrade",
    arguments=(NAME,),
)

LAYER_GET = Verb(
    "layer get",
    (Option(("--force",), "flag", "If DEST is there, replace it: a file by a file, a folder by a folder."), HOME),
    """Write what is attached to the capture NAME as KIND to DEST, a file or a folder; a file goes to stdout if DEST is
    `-`.

    DEST is there when it is whole. It belongs to you; modes, times, links, hard links and holes are as they were.
    Inside a session DEST is `-`, and the file has 4 MiB at most.""",
    "Example: waypoint layer get before-upgrade trace trace.jsonl",
    arguments=(NAME, Argument("kind", "KIND"), Argument("dest", "DEST")),
)

LAYER = Group(
    "layer",
    (),
    """Files and folders that are attached to captures: an agent's own model, cache, trace, or list of effects. They are
    a part of the capture, and of its image.""",
    "Example: waypoint layer list before-upgrade",
    (LAYER_ATTACH, LAYER_GET, LAYER_LIST),
)
