"""The verbs about the disk: what holds how much of it, what is given back, whether the store is whole."""

from waypoint.model.verbs import Argument, Option, Verb
from waypoint.model.verbs.fast import HOME, JSON

KEEP_KINDS = {
    "last": "Of each branch's history, keep the last N captures, too.",
    "hourly": "Keep the newest of each of the last N hours that have one.",
    "daily": "Keep the newest of each of the last N days that have one.",
    "weekly": "Keep the newest of each of the last N weeks that have one.",
    "monthly": "Keep the newest of each of the last N months that have one.",
}
"""The kinds of policies, each with its help."""

GC = Verb(
    "gc",
    (
        Option(
            ("--keep-operations",), "text", "Operations of this age can be taken back afterwards (default: 7d).", "AGE"
        ),
        Option(("--dry-run",), "flag", "Remove nothing, say what would be removed, and what is kept and why."),
        *(Option((f"--keep-{kind}",), "number", f"{text}", "N") for kind, text in KEEP_KINDS.items()),
        JSON,
        HOME,
    ),
    """Remove the captures that nothing keeps, and what the home's names.db does not know; give the space back.

    A capture is kept by each branch whose tip it is, by a checkpoint, and by each operation of the last 7 days that
    'waypoint undo' would need it for. What a kept capture goes on from stays in the log, but its content is removed.
    AGE is a number with s, m, h, d or w behind it: 12h, 30d. With --keep-... captures without a name are kept, too: of
    each branch by itself, as restic's forget chooses, in local time. A policy removes nothing that is kept without it:
    names are never removed, and with the default of --keep-operations nothing goes that an undo would need. With one,
    and with --dry-run, each capture is told with what keeps it: branch, checkpoint, undo N (see 'waypoint op log'),
    last, daily and so on. Where the disk runs short, the daemon itself makes room without such a policy.""",
    "Example: waypoint gc --dry-run; waypoint gc --keep-operations 12h",
)

VERIFY = Verb(
    "verify",
    (
        Option(("--read-data",), "flag", "Read every byte of the store, and not only what tells of it."),
        JSON,
        HOME,
    ),
    """Look for damage in the home's store. Exit status 10 if there is some, which is told on stderr.

    In the store is what names stand for, soon after they were moved (with 'waypoint checkpoint --wait' at once).""",
    "Example: waypoint verify --read-data",
)

EVICT = Verb(
    "evict",
    (
        Option(("--all",), "flag", "All captures that are in the store; of a user who was let in, the own ones."),
        JSON,
        HOME,
    ),
    """Remove the content of captures that are in the home's store, which takes less room than they do.

    The captures that NAMEs stand for stay what they are: whoever needs one (restore, fork, shell) has it brought back
    from the store, which takes longer. First all that these consist of is read there: what is
    damaged stays where it is.""",
    "Example: waypoint checkpoint warm --wait && waypoint evict warm",
    arguments=(Argument("names", "NAME", required=False, many=True),),
)

DU = Verb(
    "du",
    (JSON, HOME),
    """Say what holds how much of the disk: captures and live sessions (all, or those that NAMEs stand for), the rest.

    FILES is what a capture or session has changed on disk, OWN FILES what of it no other one has: so much becomes free
    if it goes. PROCESSES is what the images of its processes and its terminal take. IN THE STORE, for NAMEs, is what
    its image takes there, compressed, with what other images have, too; a capture that is evicted has nothing else.""",
    "Example: waypoint du; waypoint du before-upgrade --json",
    arguments=(Argument("names", "NAME", required=False, many=True),),
)

EXPORT = Verb(
    "export",
    (
        Option(("--force",), "flag", "If there is such a file, replace it."),
        Option(("--alone",), "flag", "Leave out what it goes on from."),
        Option(("--sign",), "text", "Sign it with the Ed25519 key in FILE (openssl genpkey, ssh-keygen).", "FILE"),
        Option(("--passphrase-file",), "text", "Encrypt it with the passphrase in FILE.", "FILE"),
        Option(("--passphrase",), "flag", "Ask for the passphrase on the terminal, twice."),
        JSON,
        HOME,
    ),
    """Write a checkpoint, or a branch's last capture, to one file, with all that it goes on from: 'waypoint import'
    takes it in, on this machine or another.

    NAME is put into the home's store first, as by 'waypoint checkpoint --wait'. FILE is - for stdout. It has the memory
    of programs in it, with all their secrets: also of a store that is encrypted it is written as it is, unless a
    passphrase is given. FILE is there when all of it is on disk, for its owner alone. A file that is there already is
    not replaced, exit status 4; with --force it is, when all of the new one is on disk; a failure leaves it.""",
    "Example: waypoint export warm warm.wpx --sign key.pem; waypoint export warm - | ssh HOST waypoint import -",
    arguments=(Argument("name", "NAME"), Argument("file", "FILE")),
)

IMPORT = Verb(
    "import",
    (
        Option(("--as",), "text", "Call the checkpoint NEW (default: as where it was exported).", "NEW"),
        Option(
            ("--require-signature",),
            "text",
            "Take it only if the key whose public half is in FILE has signed it, and nothing has changed since.",
            "FILE",
        ),
        Option(("--passphrase-file",), "text", "Open it with the passphrase in FILE.", "FILE"),
        Option(("--passphrase",), "flag", "Ask for the passphrase on the terminal, as for an encrypted FILE anyway."),
        Option(("--trust",), "flag", "Also if its sessions would have more of this machine than others (--bind)."),
        JSON,
        HOME,
    ),
    """Take in what 'waypoint export' has written, as a checkpoint, with all that it goes on from. FILE is - for stdin.

    All of it is looked at before anything is kept. It says what cannot come back on this machine: another processor,
    kernel, CRIU or base. Its programs run here when it is restored, so take it from whom you trust: signed. What
    reaches out of its sessions is refused unless it is signed by the required key, or with --trust. Only root may, and
    a user whom root trusts fully.""",
    "Example: waypoint import warm.wpx --as warmed --require-signature key.pub; waypoint fork warmed try",
    arguments=(Argument("file", "FILE"),),
)
