"""`waypoint install`: the plugin of Waypoint in coding agents, by the plugin managers of the agents themselves.

A folder of the user holds a marketplace with the one plugin (`folder_of_plugin`); an agent's own command adds the
marketplace and installs the plugin from it. The agent's settings are copied before (`.before-waypoint` beside them), so
that `uninstall` can put back their very bytes if nothing else has changed them.
"""

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from waypoint.model.errors import Failed, HostLacks, StateConflict

Agent = Literal["claude", "codex"]
AGENTS: tuple[Agent, ...] = ("claude", "codex")
NAME = "waypoint"
_PLUGIN = os.path.join(os.path.dirname(os.path.realpath(__file__)), "plugin")
_KEPT = ".before-waypoint"
_LIMIT_S = 60.0
_IDENT = f"{NAME}@{NAME}"


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installation has changed. `kept`: the copy of the settings from before; None if there were none."""

    agent: Agent
    plugin: str
    settings: str
    kept: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal has changed. `was_there`: False if nothing of Waypoint was installed. `as_before`: whether the
    settings have the same bytes as before the installation.
    """

    agent: Agent
    settings: str
    was_there: bool
    as_before: bool


@dataclass(frozen=True, slots=True)
class _Kind:
    """One agent: where its settings are, how they are parsed, and the words of its plugin manager."""

    variable: str
    folder: str
    settings: str
    parse: Callable[[str], Any]
    install: tuple[str, ...]
    uninstall: tuple[str, ...]

    def home(self, environ: Mapping[str, str]) -> str:
        return environ.get(self.variable) or os.path.join(environ["HOME"], self.folder)


_KINDS: dict[Agent, _Kind] = {
    "claude": _Kind("CLAUDE_CONFIG_DIR", ".claude", "settings.json", json.loads, ("install",), ("uninstall",)),
    "codex": _Kind("CODEX_HOME", ".codex", "config.toml", tomllib.loads, ("add",), ("remove",)),
}
_LEFT_EMPTY = ("enabledPlugins", "extraKnownMarketplaces")
"""Keys of Claude Code's settings that its plugin manager makes, and leaves empty."""


def folder_of_plugin(environ: Mapping[str, str]) -> str:
    """The folder of this user that holds the marketplace and the plugin."""
    data = environ.get("XDG_DATA_HOME") or os.path.join(environ["HOME"], ".local/share")
    return os.path.join(data, "waypoint-plugin")


def install(agent: Agent, command: str, environ: Mapping[str, str]) -> Installed:
    """Install the plugin, or install it again. `command`: the path of the waypoint command for its hooks and tools.
    `environ`: the user's environment, with HOME.

    Raises HostLacks (the agent is not installed), StateConflict (its settings cannot be parsed), Failed. After a
    failure the settings are as before.
    """
    kind, program, folder = _KINDS[agent], _program(agent, environ), folder_of_plugin(environ)
    settings = os.path.realpath(os.path.join(kind.home(environ), kind.settings))
    before = _read(kind, settings)
    state = _state(folder)
    is_first = agent not in state
    if is_first:
        state[agent] = {"there": _present(kind.home(environ))}
    _write_marketplace(folder, command, state)
    kept = f"{settings}{_KEPT}" if before is not None or os.path.exists(f"{settings}{_KEPT}") else None
    if before is not None and (is_first or not os.path.exists(f"{settings}{_KEPT}")):
        _write(f"{settings}{_KEPT}", before, _mode(settings))
    try:
        if not is_first:  # the agent has a copy of the plugin, which may be of an earlier version
            _manage(program, [*kind.uninstall, _IDENT], check=False)
            _manage(program, ["marketplace", "remove", NAME], check=False)
        _manage(program, ["marketplace", "add", folder])
        _manage(program, [*kind.install, _IDENT])
    except BaseException:
        if is_first:
            _manage(program, ["marketplace", "remove", NAME], check=False)
            _clean(agent, settings, state, environ)
        raise
    return Installed(agent, os.path.join(folder, NAME), settings, kept)


def uninstall(agent: Agent, environ: Mapping[str, str]) -> Removed:
    """Remove the plugin from the agent, if it is installed. Raises HostLacks, StateConflict, Failed."""
    kind, folder = _KINDS[agent], folder_of_plugin(environ)
    settings = os.path.realpath(os.path.join(kind.home(environ), kind.settings))
    state = _state(folder)
    if agent not in state:
        return Removed(agent, settings, was_there=False, as_before=True)
    program = _program(agent, environ)
    _read(kind, settings)
    _manage(program, [*kind.uninstall, _IDENT], check=False)
    _manage(program, ["marketplace", "remove", NAME], check=False)
    as_before = _clean(agent, settings, state, environ)
    return Removed(agent, settings, was_there=True, as_before=as_before)


def _clean(agent: Agent, settings: str, state: dict[str, Any], environ: Mapping[str, str]) -> bool:
    """Remove what the agent's plugin manager leaves behind. Returns whether the settings are as before."""
    kind, folder, there = _KINDS[agent], folder_of_plugin(environ), set(state[agent]["there"])
    home = kind.home(environ)
    shutil.rmtree(os.path.join(home, "plugins/cache", NAME), ignore_errors=True)
    for name in ("plugins/known_marketplaces.json", "plugins/installed_plugins.json"):
        path = os.path.join(home, name)
        with contextlib.suppress(OSError, ValueError):
            if name not in there and _holds_nothing(path):
                os.unlink(path)
    for name in ("plugins/cache", "plugins/marketplaces", "plugins", ".tmp/marketplaces", ".tmp"):
        if name not in there:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(home, name))
    as_before = _put_back(kind, settings, was_there=kind.settings in there)
    del state[agent]
    if state:
        _write(os.path.join(folder, "installed.json"), json.dumps(state), 0o600)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return as_before


def _put_back(kind: _Kind, settings: str, *, was_there: bool) -> bool:
    """Give the settings the bytes from before, if they say the same; else remove only what Waypoint has added. Returns
    whether they have the bytes from before.
    """
    kept = f"{settings}{_KEPT}"
    before, now = _text(kept), _text(settings)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(kept)
    if now is None or now == before:
        return now == before
    then, value = _parsed(kind, before), _parsed(kind, now)
    cleaned = {key: one for key, one in value.items() if one or key not in _LEFT_EMPTY or key in then}
    if before is None and not was_there and not cleaned:
        os.unlink(settings)
        return True
    if before is not None and cleaned == then:
        _write(settings, before, _mode(settings))
        return True
    if cleaned != value and kind.parse is json.loads:
        _write(settings, json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n", _mode(settings))
    return False


def _parsed(kind: _Kind, text: str | None) -> dict[str, Any]:
    found = kind.parse(text) if text and text.strip() else {}
    return found if isinstance(found, dict) else {}


def _holds_nothing(path: str) -> bool:
    with open(path) as file:
        value = json.load(file)
    return not value or value.get("plugins") == {}


def _present(home: str) -> list[str]:
    """Which of the files and folders that the plugin managers make are there."""
    names = (
        "settings.json",
        "config.toml",
        "plugins",
        "plugins/cache",
        "plugins/marketplaces",
        "plugins/known_marketplaces.json",
        "plugins/installed_plugins.json",
        ".tmp",
        ".tmp/marketplaces",
    )
    return [name for name in names if os.path.lexists(os.path.join(home, name))]


def _program(agent: Agent, environ: Mapping[str, str]) -> str:
    found = shutil.which(agent, path=environ.get("PATH", os.defpath))
    if found is None:
        step = f"install {agent}, or add its folder to PATH; without it: claude mcp add, see docs/agents.md"
        raise HostLacks("install the plugin in", agent, f"there is no program {agent} in PATH", step)
    return found


def _manage(program: str, words: list[str], *, check: bool = True) -> None:
    """Run the agent's plugin manager. Raises Failed with its words."""
    command = [program, "plugin", *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed("run", " ".join(command), str(error), "run it by hand to see why") from error
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}")[-500:]
        raise Failed("run", " ".join(command), said, "repair this, then repeat the command")


def _read(kind: _Kind, settings: str) -> str | None:
    """The agent's settings; None if there are none. Raises StateConflict if they cannot be parsed."""
    try:
        text = _text(settings)
        if text:
            kind.parse(text)
    except (ValueError, UnicodeDecodeError) as error:
        said, step = f"they cannot be parsed: {error}", "repair the file; nothing was changed"
        raise StateConflict("change the settings in", settings, said, step) from error
    except OSError as error:
        raise Failed("read", settings, error.strerror or str(error), "repair this; nothing was changed") from error
    if text is not None and not os.access(settings, os.W_OK):
        raise Failed("change", settings, "the file is read-only", "make it writable; nothing was changed")
    return text


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _mode(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return 0o600


def _write(path: str, text: str, mode: int) -> None:
    """Write a file at once: after a crash it has the former content or this one."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".waypoint-")
    with open(fd, "w", encoding="utf-8", newline="") as file:
        os.fchmod(fd, mode)
        file.write(text)
    os.replace(temporary, path)


def _state(folder: str) -> dict[str, Any]:
    """By agent, what was there before the installation."""
    path = os.path.join(folder, "installed.json")
    try:
        text = _text(path)
        found = json.loads(text) if text else {}
    except ValueError as error:
        step = f"remove the plugin by the agent's own command 'plugin', and then {folder}"
        raise StateConflict("read what was installed from", path, f"it cannot be parsed: {error}", step) from error
    return found if isinstance(found, dict) else {}


def _write_marketplace(folder: str, command: str, state: dict[str, Any]) -> None:
    """Write the marketplace with the plugin, in place of an earlier one."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    new = tempfile.mkdtemp(prefix=".waypoint-plugin-", dir=os.path.dirname(folder))
    try:
        os.chmod(new, 0o755)
        plugin = os.path.join(new, NAME)
        shutil.copytree(_PLUGIN, plugin, ignore=shutil.ignore_patterns("__pycache__"))
        _adapt(plugin, os.path.join(folder, NAME), command)
        about = {"name": NAME, "description": "Checkpoints, rewind and branches of whole terminal sessions"}
        _dump(
            f"{new}/.claude-plugin/marketplace.json",
            {
                **about,
                "owner": {"name": "Waypoint"},
                "plugins": [{"name": NAME, "source": f"./{NAME}", "description": about["description"]}],
            },
        )
        source = {"source": "local", "path": f"./{NAME}"}
        policy = {"installation": "AVAILABLE", "authentication": "ON_INSTALL"}
        _dump(
            f"{new}/.agents/plugins/marketplace.json",
            {
                "name": NAME,
                "interface": {"displayName": "Waypoint"},
                "plugins": [{"name": NAME, "source": source, "policy": policy, "category": "Developer Tools"}],
            },
        )
        _write(os.path.join(new, "installed.json"), json.dumps(state), 0o600)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(new, folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _adapt(plugin: str, later: str, command: str) -> None:
    """Write the paths of this machine into the plugin's files. `later`: where the plugin will be."""
    for name in (".mcp.json", "mcp.json"):
        path = os.path.join(plugin, name)
        with open(path) as file:
            found = json.load(file)
        found["mcpServers"][NAME]["command"] = command
        _dump(path, found)
    path = os.path.join(plugin, "hooks/hooks.json")
    with open(path) as file:
        found = json.load(file)
    python = sys.executable if os.path.isabs(sys.executable) else "/usr/bin/python3"
    words = shlex.join((python, "-I", f"{later}/hooks/hook.py", command))
    for groups in found["hooks"].values():
        for group in groups:
            for hook in group["hooks"]:
                hook["command"] = words
    _dump(path, found)


def _dump(path: str, value: object) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
