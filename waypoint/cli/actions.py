"""From a verb to the function that carries it out."""

from waypoint.model.verbs import fast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from waypoint.model.verbs import Given

PLACES = {
    **{verb: f"fast.{verb}" for verb in fast.VERBS},  # `entry` derives the same places
    "setup": "commands.setup",
    "doctor": "commands.doctor",
    "attach": "commands.attach",
    "logs": "commands.logs",
    "ps": "commands.ps",
    "stop": "commands.stop",
    "branch": "history.branch",
    "branch delete": "history.branch:delete",
    "branch list": "history.branch",
    "branch rename": "history.branch:rename",
    "log": "history.log",
    "show": "history.show",
    "layer list": "history.layer",
    "layer get": "history.layer:get",
    "diff": "history.diff",
    "layer attach": "history.layer:attach",
    "rm": "history.rm",
    "apply": "history.apply",
    "undo": "history.undo",
    "op log": "history.op",
    "cat": "disk.cat",
    "cp": "disk.cp",
    "mount": "disk.mount",
    "gc": "disk.gc",
    "evict": "disk.evict",
    "verify": "disk.verify",
    "du": "disk.du",
    "export": "disk.export",
    "import": "disk.import_",
    "profile list": "commands.profile",
    "profile show": "commands.profile:show",
    "profile test": "commands.profile:test",
    "events": "commands.events",
    "guide": "commands.guide",
    "daemon logs": "commands.daemon_logs",
    "daemon run": "commands.daemon_run",
    "daemon status": "commands.daemon:status",
    "daemon stop": "commands.daemon:stop",
}
"""By verb, the module below waypoint.cli and, if it is not `run`, the function in this module. A module is loaded when
its verb is used.
"""


def action_of(verb: str) -> "Callable[[Given], int]":
    """The function that carries `verb` out. It gets the verb's parameters and returns the exit status; it raises
    WaypointError, OSError.
    """
    module, _, function = PLACES[verb].partition(":")
    found: Callable[[Given], int] = getattr(__import__(f"waypoint.cli.{module}", fromlist=["run"]), function or "run")
    return found
