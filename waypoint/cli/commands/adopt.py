"""`waypoint adopt`."""

import os

from shellwrap.window_size import terminal_size
from waypoint.cli.caller import branch_of, caller_env, current_folder, is_default_branch, require_terminal, sudo_caller
from waypoint.cli.output import print_json, print_lines
from waypoint.client.quoting import as_json_text
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status: the shell's, or 0 with `-d` or after a detach."""
    client, branch = Client(given.text("home")), branch_of(given)
    is_detached = given.flag("detach")
    if given.flag("json") and not is_detached:
        raise UsageProblem("use", "--json", "stdout is used by the attached terminal", "add -d")
    if not is_detached:
        require_terminal("show", f"branch {branch}", "add -d, and read its terminal with 'waypoint logs'")
    rows, cols = terminal_size(0)
    user = sudo_caller()
    body: dict[str, object] = {"default_user": user, "default_branch": is_default_branch(given)}
    body |= {"default_cwd": current_folder(), "default_shell": None if user else os.environ.get("SHELL")}
    asked = {name: value for name, value in body.items() if value}
    options = {**asked, "auto": True, "rows": rows, "cols": cols, "env": caller_env()}
    session = client.start(branch, **options)  # type: ignore[arg-type]  # the SDK itself has no defaults of a caller
    facts = session.adopt(*map(as_json_text, given.texts("words")))
    if not is_detached:
        from waypoint.cli.terminal import attach

        return attach(client.home, branch, {"user": facts.user})
    if given.flag("json"):
        print_json(facts)
    else:
        print_lines([branch])
    return 0
