"""`waypoint shell`. client/wire.py says what may be imported here, and in functions that `-d` calls."""

import os

from shellwrap.window_size import terminal_size
from waypoint.cli.caller import branch_of, caller_env, current_folder, home_of, require_terminal, sudo_caller
from waypoint.cli.fast.answers import (
    session_of,
    tell_degraded,
    tell_host_ids,
    tell_left_out,
    tell_network,
    tell_no_hooks,
    tell_no_seccomp,
    tell_published,
    tell_unlimited,
    tell_without_root,
)
from waypoint.cli.output import print_json, print_lines
from waypoint.client.link import ask
from waypoint.client.quoting import as_json_text
from waypoint.model.errors import UsageProblem

_LIMITS = ("memory", "cpus", "pids", "disk")  # names of options, and in the request
_OF_SHELL_TEXT = " \t\n;&|<>()$`\"'"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status: the shell's, 0 with `-d` or after a detach. Raises WaypointError."""
    home, branch = home_of(given), branch_of(given)
    is_detached, as_json = given.flag("detach"), given.flag("json")
    if as_json and not is_detached:
        raise UsageProblem("print", "--json", "stdout is the session's", "use -d too")
    if not is_detached:
        next_step = f"start it with 'waypoint shell {branch} -d' and use 'waypoint exec -b {branch} -- CMD'"
        require_terminal("show", f"branch {branch}", next_step)
    session = session_of(
        ask(home, "POST", "/v1/sessions", {"branch": branch, "to_attach": not is_detached, **_setting(given)})
    )
    tell_no_hooks(session)
    tell_host_ids(session)
    tell_without_root(home)
    tell_no_seccomp(session)
    tell_unlimited(session, [name for name in _LIMITS if given[name] is not None])
    tell_network(session)
    tell_published(session)
    is_here = given["cwd"] is None and not given["base"]
    tell_left_out(session, current_folder() if is_here else "")
    tell_degraded(session)
    if not is_detached:
        from waypoint.cli.terminal import attach

        # The session belongs to the caller, or to the user of --user, as the daemon has checked; attach in the name of
        # this user.
        return attach(home, branch, {"user": session.get("user"), "session": session.get("id")})
    if as_json:
        print_json(session)
    else:
        print_lines([branch])
    return 0


def _setting(given: "Given") -> dict[str, object]:
    """The request's body. Options that were not given are left out, so that a branch that goes on keeps its values."""
    for name in (
        "from",
        "base",
        "user",
        "cwd",
        "shell",
    ):  # an empty value may come from an unset variable: do not use a default
        if given[name] == "":
            raise UsageProblem("use", f"--{name}", "its value is empty", "leave it out, or give one")
    allowed = [[one for one in text.split(",") if one] for text in given.texts("allow_net")]
    if [] in allowed:
        raise UsageProblem("use", "--allow-net", "its value is empty", "leave it out, or give one")
    base, cwd = given.text("base"), given.text("cwd")
    setting: dict[str, object] = {
        "from_name": given["from"],
        "net": given["net"],
        "tier": given["tier"],
        "allow": [given["allow"]] if given["allow"] else [],
        "allow_net": [one for names in allowed for one in names],
        "publish": [*given.texts("publish")],
        "user": given["user"],
        "default_user": sudo_caller(),
        "shell": given["shell"],
        **{name: given[name] for name in _LIMITS},
        "binds": [_from_here(bind) for bind in given.texts("bind")],
        "command": [as_json_text(word) for word in _command(given.texts("words"))],
    }
    if base:
        setting |= {"base": os.path.abspath(base), "cwd": cwd}
    else:  # the session's folders are those of this machine, so the path is made absolute here
        setting |= {"cwd": os.path.abspath(cwd)} if cwd else {"default_cwd": current_folder()}
    if given["user"] is None and setting["default_user"] is None:  # as the caller, whose $SHELL it is
        setting["default_shell"] = os.environ.get("SHELL")
    rows, cols = terminal_size(0)
    asked = {name: value for name, value in setting.items() if value}
    return {**asked, "rows": rows, "cols": cols, "env": caller_env()}


def _command(words: "list[str]") -> "list[str]":
    """What runs in place of the shell. One word that can only be shell text is that, as with `exec`, ssh and tmux."""
    is_text = len(words) == 1 and any(letter in _OF_SHELL_TEXT for letter in words[0])
    return ["sh", "-c", words[0]] if is_text and not os.path.exists(words[0]) else words


def _from_here(bind: str) -> str:
    """HOST:PATH[:ro] with HOST as an absolute path."""
    host, colon, rest = bind.partition(":")
    return f"{os.path.abspath(host)}{colon}{rest}" if host else bind
