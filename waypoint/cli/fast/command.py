"""`waypoint exec` and `waypoint run`."""

from waypoint.cli.caller import asker_of, branch_of, home_of
from waypoint.cli.fast.streaming import run_streaming
from waypoint.client.quoting import as_json_text, exec_text
from waypoint.model.errors import UsageProblem

_PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}  # no-color.org; many programs know only one of them

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run_exec(given: "Given") -> int:
    home, branch = home_of(given), branch_of(given)
    has_input, has_tty = given.flag("interactive"), given.flag("tty")
    request: dict[str, object] = {"text": exec_text(given.texts("words")), "tty": has_tty, **asker_of(given)}
    if given["timeout"] is not None:
        request["timeout_s"] = given["timeout"]
    if given["wait_prompt"] is not None:
        request["wait_prompt_s"] = given["wait_prompt"]
    if has_input and not has_tty:  # with --tty the session's terminal is the command's input
        request["stdin"] = True
    request |= _environment(given)
    if given.flag("json"):
        return _run_for_json(home, branch, "exec", request)
    return run_streaming(home, branch, "exec", request, has_input=has_input)


def run_run(given: "Given") -> int:
    home, branch = home_of(given), branch_of(given)
    words = [as_json_text(word) for word in given.texts("words")]
    request: dict[str, object] = {"argv": words, "tty": given.flag("tty"), "stdin": given.flag("interactive")}
    request |= asker_of(given) | _environment(given)
    if given["timeout"] is not None:
        request["timeout_s"] = given["timeout"]
    if given.flag("json"):
        return _run_for_json(home, branch, "run", request)
    return run_streaming(home, branch, "run", request, has_input=given.flag("interactive"))


def _run_for_json(home: str, branch: str, verb: str, request: dict[str, object]) -> int:
    from waypoint.cli.fast.exec_json import run_for_json

    return run_for_json(home, branch, verb, request)


def _environment(given: "Given") -> dict[str, object]:
    """Return the fields `cwd` and `env` of a request, if they are given."""
    found: dict[str, object] = {}
    cwd = given.text("cwd")
    if cwd == "":  # it may come from an unset variable: do not use a default
        raise UsageProblem("use", "--cwd", "its value is empty", "give a directory, or leave out the option")
    if cwd is not None:
        found["cwd"] = as_json_text(cwd)
    asked = _PLAIN if given.flag("no_color") else {}
    if asked or given.texts("env"):
        found["env"] = asked | dict(map(_variable, given.texts("env")))
    return found


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = as_json_text(text).partition("=")
    if not equals or not (name.isidentifier() and name.isascii()):
        said = "it is not NAME=VALUE, with a name of letters, digits and underscores"
        raise UsageProblem("use", f"--env {text}", said, "write it like this: --env LANG=C")
    return name, value
