"""`shell`: what it does once its options are known. With `-d` see client/wire.py on what may be loaded here."""

import os

from shellwrap.window_size import terminal_size
from waypoint.cli.caller import caller_env, require_terminal, sudo_caller
from waypoint.client.address import find_home, pick_branch
from waypoint.client.link import ask
from waypoint.client.quoting import as_json_text
from waypoint.model.errors import Failed, UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.cli.hot_verbs import Value

    Parameters = dict[str, Value]


def run(given: "Parameters") -> int:
    """The exit status: the shell's, 0 with `-d`. Raises WaypointError."""
    home, branch = _place(given)
    if given["json"] and not given["detach"]:
        raise UsageProblem("print", "--json", "stdout is the session's", "use -d too")
    if not given["detach"]:
        next_step = f"start it with 'waypoint shell {branch} -d' and use 'waypoint exec -b {branch} -- CMD'"
        require_terminal("show", f"branch {branch}", next_step)
    session = start(home, branch, _setting(given))
    tell_left_out(session)
    if not given["detach"]:
        from waypoint.cli.terminal import attach

        return attach(home, branch)
    if given["json"]:
        _print_json(session)
    else:
        os.write(1, f"{branch}\n".encode())
    return 0


def start(home: str, branch: str, setting: dict[str, object]) -> dict[str, object]:
    """Start the branch's session, or find the live one; what the daemon says of it."""
    answer = ask(home, "POST", "/v1/sessions", {"branch": branch, **setting})
    return session_of(answer)


def session_of(answer: object) -> dict[str, object]:
    """The session in an answer of the daemon. Raises Failed if there is none."""
    session = answer.get("session") if isinstance(answer, dict) else None
    if not isinstance(session, dict):
        raise Failed("understand", "the daemon", "its answer has no session", "use one version of both")
    return session


def _place(given: "Parameters") -> tuple[str, str]:
    home, argument, option = (_text(given[name]) for name in ("home", "argument", "branch"))
    if argument is not None and option is not None and argument != option:
        raise UsageProblem("use", "--branch", f"two branches were given: {argument} and {option}", "leave one out")
    return find_home(home), pick_branch(argument if argument is not None else option)


def _setting(given: "Parameters") -> dict[str, object]:
    """The body of the request. What was not asked for is left to the daemon: a branch that goes on keeps its own."""
    for name in ("from", "base", "user", "cwd"):  # of an unset variable, say: the default is not what was meant
        if given[name] == "":
            raise UsageProblem("use", f"--{name}", "its value is empty", "leave it out, or give one")
    binds, words = given["bind"], given["words"]
    assert isinstance(binds, list)
    assert isinstance(words, list)
    base, cwd = _text(given["base"]), _text(given["cwd"])
    setting: dict[str, object] = {
        "from_name": given["from"],
        "net": given["net"],
        "user": given["user"],
        "default_user": sudo_caller(),
        "binds": [_from_here(bind) for bind in binds],
        "command": [as_json_text(word) for word in words],
    }
    if base:
        setting |= {"base": os.path.abspath(base), "cwd": cwd}
    else:  # a folder of this machine, where the session has the same
        setting["cwd"] = os.path.abspath(cwd or os.curdir)
    rows, cols = terminal_size(0)
    asked = {name: value for name, value in setting.items() if value}
    return {**asked, "rows": rows, "cols": cols, "env": caller_env()}


def _from_here(bind: str) -> str:
    """HOST:PATH[:ro] with HOST as an absolute path."""
    host, colon, rest = bind.partition(":")
    return f"{os.path.abspath(host)}{colon}{rest}" if host else bind


def tell_left_out(session: dict[str, object]) -> None:
    """Say on stderr what of the machine's mounts the session has not."""
    left_out = session.get("left_out")
    for place in left_out if isinstance(left_out, list) else []:
        os.write(2, f"not in the session: {place}\n".encode(errors="backslashreplace"))


def _print_json(session: dict[str, object]) -> None:
    from waypoint.cli import packages

    packages.make_importable()
    from dataclasses import asdict

    from waypoint.cli.render import print_json
    from waypoint.client.facts import SessionFacts

    print_json(asdict(SessionFacts.parse(session)))


def _text(value: "Value") -> str | None:
    return value if isinstance(value, str) else None
