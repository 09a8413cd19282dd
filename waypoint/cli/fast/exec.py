"""`waypoint exec`."""

from waypoint.cli.caller import asker_of, branch_of, home_of
from waypoint.cli.fast.streaming import run_streaming
from waypoint.client.quoting import exec_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status. Raises UsageProblem for errors that are found before the daemon is asked."""
    home, branch = home_of(given), branch_of(given)
    has_input, has_tty = given.flag("interactive"), given.flag("tty")
    request: dict[str, object] = {"text": exec_text(given.texts("words")), "tty": has_tty, **asker_of(given)}
    if given["timeout"] is not None:
        request["timeout_s"] = given["timeout"]
    if given["wait_prompt"] is not None:
        request["wait_prompt_s"] = given["wait_prompt"]
    if has_input and not has_tty:  # with --tty the session's terminal is the command's input
        request["stdin"] = True
    if given["cwd"] is not None or given["env"]:
        from waypoint.cli.fast.command_options import setting_of

        request |= setting_of(given)
    if given.flag("json"):
        from waypoint.cli.fast.exec_json import run_for_json

        return run_for_json(home, branch, request)
    return run_streaming(home, branch, "exec", request, has_input=has_input)
