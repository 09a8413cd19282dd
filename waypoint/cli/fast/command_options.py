"""The options --cwd and --env of `exec` and `run`. Loaded only where one of them is given."""

from waypoint.client.quoting import as_json_text
from waypoint.model.errors import UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def setting_of(given: "Given") -> dict[str, object]:
    """The fields `cwd` and `env` of a request, those that are given. Raises UsageProblem."""
    found: dict[str, object] = {}
    cwd = given.text("cwd")
    if cwd == "":  # it may come from an unset variable: do not use a default
        raise UsageProblem("use", "--cwd", "its value is empty", "leave it out, or give one")
    if cwd is not None:
        found["cwd"] = as_json_text(cwd)
    if given.texts("env"):
        found["env"] = dict(map(_variable, given.texts("env")))
    return found


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = as_json_text(text).partition("=")
    if not equals or not (name.isidentifier() and name.isascii()):
        said = "it is not NAME=VALUE, with a name of letters, digits and underscores"
        raise UsageProblem("use", f"--env {text}", said, "--env LANG=C")
    return name, value
