"""`waypoint run`."""

from waypoint.cli.caller import asker_of, branch_of, home_of
from waypoint.cli.fast.streaming import run_streaming
from waypoint.client.quoting import as_json_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status. Raises UsageProblem for errors that are found before the daemon is asked."""
    home, branch = home_of(given), branch_of(given)
    words = [as_json_text(word) for word in given.texts("words")]
    request: dict[str, object] = {"argv": words, "tty": given.flag("tty"), "stdin": given.flag("interactive")}
    request |= asker_of(given)
    if given["cwd"] is not None or given["env"]:
        from waypoint.cli.fast.command_options import setting_of

        request |= setting_of(given)
    return run_streaming(home, branch, "run", request, has_input=given.flag("interactive"))
