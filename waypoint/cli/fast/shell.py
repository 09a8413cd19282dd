"""`waypoint shell`. client/wire.py says what may be imported here, and in functions that `-d` calls."""

import os

from shellwrap.window_size import terminal_size
from waypoint.cli.caller import (
    branch_of,
    caller_env,
    current_folder,
    home_of,
    is_default_branch,
    require_terminal,
    sudo_caller,
)
from waypoint.cli.fast.answers import note_ports, session_of, warn_of_new_session
from waypoint.cli.output import print_json, print_lines
from waypoint.client.link import ask
from waypoint.client.quoting import as_json_text
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import LIMIT_BOUNDS, MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.verbs import Given


def run(given: "Given") -> int:
    """Returns the exit status: the shell's, or 0 with `-d` or after a detach."""
    home, branch = home_of(given), branch_of(given)
    is_detached, as_json = given.flag("detach"), given.flag("json")
    if as_json and not is_detached:
        raise UsageProblem("use", "--json", "stdout is used by the attached terminal", "add -d")
    if not is_detached:
        next_step = f"start it with 'waypoint shell {branch} -d' and use 'waypoint exec -b {branch} -- CMD'"
        require_terminal("show", f"branch {branch}", next_step)
    session = session_of(ask(home, "POST", "/v1/sessions", {"branch": branch, **_setting(given)}))
    limits = [name for name in LIMIT_BOUNDS if given[name] is not None]
    folder = current_folder() if given["cwd"] is None and not given["base"] else ""
    warn_of_new_session(session, folder, limits, asked_network=bool(given["net"] or given["allow_net"]))
    if not is_detached:
        from waypoint.cli.terminal import attach

        # The daemon has checked that the session belongs to the caller or to the user of --user: attach as its owner.
        return attach(home, branch, {"user": session.get("user")})
    if as_json:
        print_json(session)
    else:
        print_lines([branch])
        note_ports(session)
    return 0


def _setting(given: "Given") -> dict[str, object]:
    """Return the request's body. It lacks options that were not given, so that an existing branch keeps its values."""
    for name in ("from", "base", "user", "cwd", "shell"):
        if given[name] == "":  # it may come from an unset variable: do not use a default
            raise UsageProblem("use", f"--{name}", "its value is empty", "give a value, or leave out the option")
    base, cwd = given.text("base"), given.text("cwd")
    setting: dict[str, object] = {
        "from_name": given["from"],
        "net": given["net"],
        "allow": [given["allow"]] if given["allow"] else [],
        "allow_net": [one for text in given.texts("allow_net") for one in text.split(",") if one],
        "publish": given.texts("publish"),
        "user": given["user"],
        "default_user": sudo_caller(),
        "default_branch": is_default_branch(given),
        "shell": given["shell"],
        **{name: given[name] for name in LIMIT_BOUNDS},
        "auto": given.flag("auto"),
        "idle_park": _age(given, "idle_park"),
        "ttl": _age(given, "ttl"),
        "binds": [_from_here(bind) for bind in given.texts("bind")],
        "command": [as_json_text(word) for word in given.texts("words")],
    }
    if base:
        is_path = base.startswith(("/", "."))  # else the name of a pinned base
        setting |= {"base": os.path.abspath(base) if is_path else base, "cwd": cwd}
    else:  # the session has this machine's folders: make the path absolute here
        setting |= {"cwd": os.path.abspath(cwd)} if cwd else {"default_cwd": current_folder()}
    if given["user"] is None and setting["default_user"] is None:  # the session is the caller's, and so is $SHELL
        setting["default_shell"] = os.environ.get("SHELL")
    rows, cols = terminal_size(0)
    asked = {name: value for name, value in setting.items() if value or isinstance(value, float)}  # 0.0: never
    return {**asked, "rows": rows, "cols": cols, "env": caller_env()}


def _age(given: "Given", name: str) -> float | None:
    """The seconds in an option that is an age; None if it is not given."""
    text = given.text(name)
    if text is None:
        return None
    from waypoint.model.times import parse_age

    seconds = parse_age(text)
    if seconds is None or not (seconds == 0 or 1 <= seconds <= MAX_SECONDS):
        next_step = "give a number and s, m, h, d or w, such as 30m; the least is 1s, and 0 means never"
        raise UsageProblem("use", f"--{name.replace('_', '-')} {text!r}", "it is not an age", next_step)
    return seconds


def _from_here(bind: str) -> str:
    """HOST:PATH[:ro] with HOST as an absolute path."""
    host, colon, rest = bind.partition(":")
    return f"{os.path.abspath(host)}{colon}{rest}" if host else bind
