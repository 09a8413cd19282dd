"""What `waypoint setup` does as root: the home, who may use it, a CRIU that works; and taking all of it away again.

Everything may be done again: what is there already is left alone. A killed one leaves the old state or the new one.
"""

import grp
import json
import os
import pwd
from pathlib import Path
from typing import Any

from waypoint.daemon import setup_criu, setup_removal
from waypoint.linux import files
from waypoint.model.errors import Failed, HostLacks, UsageProblem, WaypointError
from waypoint.model.paths import home_id

CONFIG = "config.json"
FORMAT = 1


def main(argv: list[str]) -> int:
    """See setup.py. The exit code."""
    verb, home, *rest = argv
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    try:
        if os.geteuid() != 0:
            raise HostLacks("set up", f"the home {home}", "only root may do this", "use sudo")
        match verb:
            case "install":
                install(Path(home), options)
            case "check":
                check(Path(home), options)
            case "remove":
                setup_removal.remove(Path(home), say)
            case _:
                raise UsageProblem("set up", verb, "it is not install, check or remove")
    except WaypointError as error:
        print(json.dumps({"error": error.to_json()}), flush=True)
        return error.exit_code
    return 0


def say(text: str) -> None:
    """One thing that was done or found, for people."""
    print(json.dumps({"say": text}), flush=True)


def install(home: Path, options: dict[str, str]) -> None:
    """Make the home, write down who may use it, see to a CRIU. Raises WaypointError.

    Options: `--user`, `--group`: whom to let in besides root; without them that stays as it is. A daemon that runs lets
    them in when it has been started again. `--criu`: a CRIU that is to be used as it is.
    """
    wanted = _wanted_config(home, options.get("--user"), options.get("--group"))
    if not home.exists():
        home.mkdir(mode=0o700, parents=True)
        say(f"made {home}")
    if wanted != _read_config(home):
        files.publish(str(home / CONFIG), json.dumps(wanted, indent=1).encode() + b"\n")
        say(f"{_who(wanted)} may use it")
    setup_criu.install(home, options.get("--criu"), say)


def check(home: Path, options: dict[str, str]) -> None:
    """Say what is there. Raises HostLacks for the first thing that is missing; changes nothing."""
    config = _read_config(home)
    if not config:
        raise HostLacks("use", f"the home {home}", "it has not been set up", "sudo waypoint setup")
    say(f"the home {home} is there; {_who(config)} may use it")
    setup_criu.check(home, options.get("--criu"), say)


def _wanted_config(home: Path, user: str | None, group: str | None) -> dict[str, Any]:
    """What config.json should hold. Keeps what is in it and not ours to decide, like the sizes of the pool."""
    config = {"owner_uid": 0, "group_gid": None, **_read_config(home)}
    config |= {"format": FORMAT, "home_id": home_id(str(home))}
    if user is not None:
        try:
            config["owner_uid"] = pwd.getpwnam(user).pw_uid
        except KeyError as error:
            raise UsageProblem("let in", f"user {user}", "there is no such user", "see 'getent passwd'") from error
    if group is not None:
        try:
            config["group_gid"] = grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise UsageProblem("let in", f"group {group}", "there is no such group", "see 'getent group'") from error
    return config


def _read_config(home: Path) -> dict[str, Any]:
    """Empty if there is none."""
    path, next_step = home / CONFIG, "mend it, or remove it and run setup again"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Failed("read", str(path), str(error), next_step) from error
    if not isinstance(config, dict):
        raise Failed("read", str(path), "it is not a JSON object", next_step)
    if config.get("format", FORMAT) != FORMAT:
        raise Failed("use", str(home), f"its format is {config['format']}", "use the version of Waypoint that made it")
    return config


def _who(config: dict[str, Any]) -> str:
    uid, gid = config.get("owner_uid"), config.get("group_gid")
    names = ["root"]
    if uid:
        names.append(f"user {_name(pwd.getpwuid, uid)}")
    if gid is not None:
        names.append(f"group {_name(grp.getgrgid, gid)}")
    return " and ".join(names)


def _name(look_up: Any, number: int) -> str:  # noqa: ANN401 - two functions whose only common type is this
    try:
        return str(look_up(number)[0])
    except KeyError:  # removed since
        return str(number)
