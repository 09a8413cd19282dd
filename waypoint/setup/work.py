"""The part of `waypoint setup` that runs as root: make the home, set who may use it, install a CRIU that works; or
remove everything.

Each verb may be repeated; it then makes only what is missing. A setup that is killed leaves the old or the new state.
"""

import contextlib
import dataclasses
import grp
import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

from waypoint.capture.storing.keys import STAYS_PLAIN, encryption_of, read_key_file
from waypoint.linux.storage import files, ownership
from waypoint.linux.tasks import lock_holder, own_namespace, process_groups
from waypoint.model.errors import Failed, HostLacks, StateConflict, UsageProblem, WaypointError
from waypoint.model.packages import make_importable
from waypoint.model.paths import (
    WITHOUT_ROOT,
    as_root,
    daemon_lock_path,
    home_id,
    is_below,
    is_config_of_home,
    runtime_folder,
    spelled,
    supervisor_lock_path,
)
from waypoint.model.rendering import size
from waypoint.setup import config as config_file
from waypoint.setup import criu_choice, home_removal
from waypoint.setup.config import CONFIG, FORMAT
from waypoint.setup.criu_build import CACHE
from waypoint.setup.machine import outside
from waypoint.setup.trials import try_everything

_UNFIT = frozenset(':;"')  # characters that separate parts of the dynamic loader's paths and of apt's configuration
_HEART = frozenset({"names.db", "pool"})  # a folder with both is a home, even if its config.json was lost
# The words on the command line for each verb that only root may use.
_COMMANDS = {
    "install": ("setup",),
    "check": ("setup", "--check"),
    "doctor": ("doctor",),
    "remove": ("setup", "--remove"),
}
# Numbers: by option, the name in config.json.
_NUMBERS = {"--undo-budget": "undo_budget_bytes", "--hot-memory": "hot_memory_bytes", "--standbys": "standbys"}
_FOR_EVERYBODY = ("add-completion", "remove-completion")
_ELSEWHERE = "name a folder that is empty or does not exist yet: waypoint --home DIR setup"


def main(argv: list[str]) -> int:
    """Run a verb, as work_program.py describes. Returns the exit code."""
    verb, home, *rest = argv
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    try:
        if os.geteuid() != 0 and verb not in _FOR_EVERYBODY and not (verb == "remove" and _is_own(home)):
            words = _COMMANDS.get(verb, ())
            raise HostLacks("set up", f"the home {home}", "only root may do this", f"sudo {spelled(home, *words)}")
        root = Path(options.get("--root", "/"))
        match verb:
            case "install":
                os.umask(0o022)  # for the folders that are made above the home
                install(Path(home), options)
                outside.install(Path(home), root, say)
            case "check":
                check(Path(home), options)
            case "doctor":
                ownership.check_home(home)
                rows = try_everything(Path(home), options.get("--criu"))
                print(json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}), flush=True)
            case "remove":
                _remove(Path(home), root)
            case "add-completion":
                outside.add_completion(Path(home), Path(options["--share"]), say)
            case "remove-completion":
                outside.remove_completion(Path(home), Path(options["--share"]), say)
            case _:
                raise UsageProblem(
                    "set up", verb, f"the verb must be one of {', '.join([*_COMMANDS, *_FOR_EVERYBODY])}"
                )
    except WaypointError as error:
        return _report(error)
    except OSError as error:
        where = os.fsdecode(error.filename or home)
        said, next_step = error.strerror or str(error), "repair this, and run setup again"
        return _report(Failed("set up", f"the home {home}", f"{said}: {where}", next_step))
    return 0


def _is_own(home: str) -> bool:
    """Whether the home works without root, for this process's user."""
    with contextlib.suppress(WaypointError):  # this user may not read it
        return config_file.read(Path(home)).get(WITHOUT_ROOT) == os.geteuid()
    return False


def _report(error: WaypointError) -> int:
    print(json.dumps({"error": error.to_json()}), flush=True)
    return error.exit_code


def say(text: str) -> None:
    """Print a message for the user: what was done or found."""
    print(json.dumps({"say": text}), flush=True)


def install(home: Path, options: dict[str, str]) -> None:
    """Make the home, save in config.json who may use it, and make sure that it has a CRIU that works.

    Options: `--user`, `--group`: who may use the home besides root; without the option the present setting stays.
    `--trust`: the user gets the rights of root (`full`), or only their own rights (`own`, the default). A running
    daemon applies a change only after a restart. `--criu`: the path of a CRIU to use instead of a private one.
    `--undo-budget`: in bytes, what captures may take that only undo needs. `--hot-memory`: in bytes, how much memory
    captures may take until they are on the disk. `--standbys`: how many frozen copies of checkpoints stand ready.
    `--encrypt`: `key-file`, with `--key-file` at another path than the usual one; or `passphrase`, read from stdin.
    """
    ownership.check_home(str(home), above_only=True)
    _check_place(home)
    wanted = _wanted_config(home, options)
    before = config_file.read(home)
    if not home.exists():
        try:
            home.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise UsageProblem("make", f"the home {home}", error.strerror or str(error), _ELSEWHERE) from error
        say(f"created the home {home}")
    _close_to_others(home)
    ownership.check_home(str(home))
    if "--encrypt" in options:
        make_importable("blake3", "cryptography", "msgspec", "rfc8785", "zstandard")
        from waypoint.setup.encrypting import encrypt  # which loads more

        passphrase = sys.stdin.buffer.read().decode().strip() if options["--encrypt"] == "passphrase" else ""
        wanted |= encrypt(home, options.get("--key-file", ""), passphrase, say)
    if wanted != before:
        files.publish(str(home / CONFIG), json.dumps(wanted, indent=1).encode() + b"\n")
        if _who(wanted) != _who(before) or not before:
            say(f"{_who(wanted)} may use the home")
        _say_who_may_not(before, wanted)
        if (budget := wanted.get("undo_budget_bytes")) != before.get("undo_budget_bytes"):
            say(f"captures that only undo needs may take {size(budget)}")
        if (memory := wanted.get("hot_memory_bytes")) != before.get("hot_memory_bytes"):
            say(f"captures may take {size(memory)} of memory, from the daemon's next start on")
        if (number := wanted.get("standbys")) != before.get("standbys"):
            say(f"{number} copies of checkpoints may stand ready, from the daemon's next start on")
    uid = before.get("trusted_uid")
    if uid is not None and uid != wanted["trusted_uid"]:
        kept = f"sessions that user {_name(pwd.getpwuid, uid)} started with full trust keep their rights and binds"
        say(f"{kept}: 'waypoint ps' lists all sessions, 'waypoint stop BRANCH' ends one")
    criu_choice.install(home, options.get("--criu"), say)


def _remove(home: Path, root: Path) -> None:
    ownership.check_home(str(home))  # otherwise a user could put another folder there, for root to remove
    home_removal.check(home)
    if os.geteuid() != 0:
        # Only there the user may remove all that the sessions' overlays have made.
        locks = (supervisor_lock_path(str(home)), daemon_lock_path(str(home)))
        members = process_groups.members(f"{runtime_folder(str(home))}/{process_groups.FOLDER}")
        own_namespace.enter([*lock_holder.holders(locks), *members])
        home_removal.remove(home, say)
        return
    key_file = _own_key_file(home)
    # The unit is removed first: otherwise systemd could start the daemon during the removal, and the daemon would make
    # the home again. If the removal fails later, the home still works without the unit.
    outside.remove(home, root, say)
    home_removal.remove(home, say)
    if key_file:
        say(f"kept the key file {key_file}, which nothing needs any more")
    if root == Path("/") and CACHE.exists():
        say(f"kept {CACHE}, the CRIU for all homes of this machine")


def _own_key_file(home: Path) -> str:
    """The key file of the home, if it lies outside of it; "" otherwise."""
    with contextlib.suppress(WaypointError):  # a home whose config.json is damaged can be removed, too
        found = encryption_of(home)
        if found is not None and found.key_file and not is_below(found.key_file, str(home)):
            return found.key_file
    return ""


def _close_to_others(home: Path) -> None:
    """Give the home mode 0700 if it belongs to this process's user. Another user's home is not changed."""
    facts = home.stat()
    if facts.st_uid == os.geteuid() and facts.st_mode & 0o077:
        home.chmod(0o700)
        say(f"closed {home} to other users: changed its mode from {facts.st_mode & 0o7777:o} to 700")


def check(home: Path, options: dict[str, str]) -> None:
    """Print what has been set up, without changing it. Raises HostLacks for the first missing part."""
    ownership.check_home(str(home))
    config = config_file.read(home)
    if not config:
        raise HostLacks("use", f"the home {home}", "it has not been set up", as_root(str(home), "setup"))
    say(f"the home {home} exists; {_who(config)} may use it")
    found = encryption_of(home)
    if found is not None:
        by = f"the key file {found.key_file}" if found.key_file else "a passphrase"
        say(f"its store is encrypted, and {by} unlocks it; not encrypted: {STAYS_PLAIN}")
        if found.key_file:
            try:
                read_key_file(found.key_file, f"{home}/store")
            except StateConflict as error:
                raise HostLacks("unlock", f"store {home}/store", error.said, error.next_step) from error
    criu_choice.check(home, options.get("--criu"), say)


def _check_place(home: Path) -> None:
    """Raise UsageProblem if `home` exists and is neither an empty folder nor a home (with or without a config.json)."""
    if not os.path.lexists(home):
        unfit = sorted({character for character in str(home) if character in _UNFIT or not character.isprintable()})
        if unfit:
            said = f"programs that setup uses accept no path with {' or '.join(map(repr, unfit))} in it"
            raise UsageProblem("use", f"{home} as a home", said, _ELSEWHERE)
        return
    if not home.is_dir():
        raise UsageProblem("use", f"{home} as a home", "it is not a folder", _ELSEWHERE)
    # A new file system has lost+found. A setup that was killed may have left a config.json that was not yet published.
    others = [name for name in os.listdir(home) if name != "lost+found" and not name.startswith(f"{CONFIG}.")]
    config = config_file.read(home)
    if not config and set(others) >= _HEART:
        return
    if not is_config_of_home(config) or (not config and others not in ([], [CONFIG])):
        said = f"it is not a home of Waypoint, and it is not empty: it contains {', '.join(sorted(others)[:3])}"
        raise UsageProblem("use", f"{home} as a home", said, _ELSEWHERE)


def _wanted_config(home: Path, options: dict[str, str]) -> dict[str, Any]:
    """The new content of config.json. Settings without an option of setup, such as the pool's sizes, are kept."""
    user, group, trust = (options.get(name) for name in ("--user", "--group", "--trust"))
    if trust is not None and user is None:
        raise UsageProblem("use", "--trust", "it works with --user only", "add --user USER")
    config = {"owner_uid": 0, "group_gid": None, **config_file.read(home)}
    config |= {"format": FORMAT, "home_id": home_id(str(home))}
    if user is not None:
        try:
            config["owner_uid"] = pwd.getpwnam(user).pw_uid
            config["trusted_uid"] = config["owner_uid"] if trust == "full" else None
        except KeyError as error:
            raise UsageProblem(
                "give access to", f"user {user}", "there is no such user", "see 'getent passwd'"
            ) from error
    if group is not None:
        try:
            config["group_gid"] = grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise UsageProblem(
                "give access to", f"group {group}", "there is no such group", "see 'getent group'"
            ) from error
    for option, key in _NUMBERS.items():
        if option in options:
            config[key] = int(options[option])
    return config


def _say_who_may_not(before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Print who loses access: a home has only one user and one group, so new ones replace them."""
    uid, gid = before.get("owner_uid"), before.get("group_gid")
    lost = [f"user {_name(pwd.getpwuid, uid)}"] if uid and uid != wanted["owner_uid"] else []
    lost += [f"group {_name(grp.getgrgid, gid)}"] if gid is not None and gid != wanted["group_gid"] else []
    if lost:
        several = (
            "a home has one user and one group besides root: to name several users, give --group a group of theirs"
        )
        say(f"{' and '.join(lost)} may no longer use the home, from the daemon's next start on; {several}")


def _who(config: dict[str, Any]) -> str:
    """Who may use the home, in words."""
    uid, gid = config.get("owner_uid"), config.get("group_gid")
    names = ["root"]
    if uid:
        is_trusted = config.get("trusted_uid") == uid
        rights = "with full trust, so with the rights of root" if is_trusted else "with own rights only"
        names.append(f"user {_name(pwd.getpwuid, uid)} ({rights})")
    if gid is not None:
        names.append(f"group {_name(grp.getgrgid, gid)}")
    return " and ".join(names)


def _name(look_up: Any, number: int) -> str:  # noqa: ANN401 - two functions whose only common type is this
    try:
        return str(look_up(number)[0])
    except KeyError:  # the user or group no longer exists
        return str(number)
