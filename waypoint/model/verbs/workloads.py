"""The verbs about workload profiles."""

from waypoint.model.verbs import Argument, Group, Option, Verb
from waypoint.model.verbs.fast import HOME, JSON

_LIST = Verb(
    "profile list",
    (JSON, HOME),
    """List the profiles that count: the home's own, which are files in its folder `profiles`, and those that are
    installed with Waypoint. What is wrong with a file that does not count is said on stderr.""",
    "Example: waypoint profile list",
)

_SHOW = Verb(
    "profile show",
    (JSON, HOME),
    "Print one profile, as it is in its file.",
    "Example: waypoint profile show postgres",
    arguments=(Argument("name", "PROFILE"),),
)

_TEST = Verb(
    "profile test",
    (
        Option(("-b", "--branch"), "text", "Say which process of BRANCH's session gets which profile.", "BRANCH"),
        JSON,
        HOME,
    ),
    """Check a profile before it is put into the home: FILE, or without FILE those that are there. Exit status 1 if one
    of these does not count, 2 if FILE is no profile.

    With --branch the profiles are also compared with the processes of a live session, FILE as if the home had it.""",
    "Example: waypoint profile test mine.toml -b fix-1",
    arguments=(Argument("file", "FILE", required=False),),
)

PROFILE = Group(
    "profile",
    (),
    """What Waypoint knows of programs: what they need to be captured, restored and started again.

    A home's owner adds profiles in the home's folder `profiles`, one TOML file each. They count from the next session,
    checkpoint or restore on, if nobody but root and the owner may write to them.""",
    "Example: waypoint profile list; waypoint profile test mine.toml",
    (_LIST, _SHOW, _TEST),
)
