"""`waypoint install` and `uninstall`: with the real plugin managers of Claude Code and Codex."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.cli_agents import Agent
from tests.homes import Home
from waypoint.agents import install

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "npm", "agents", "git")]

SETTINGS = {
    "claude": (".claude/settings.json", '{"theme":"dark",  "hooks": {"Stop": []}}'),
    "codex": (".codex/config.toml", 'model = "m"   # mine\n\n[features]\nweb = true'),
}
HOOK = Path(install.__file__).with_name("plugin") / "hooks/hook.py"
MADE_BY_AGENTS = (".claude.json", ".claude/backups", ".codex/tmp", ".local")


def make(tmp_path: Path, name: str) -> tuple[Agent, Path]:
    agent = Agent(name, tmp_path / "user", 1)
    agent.make()
    place, text = SETTINGS[name]
    settings = agent.folder / place
    settings.write_text(text)
    return agent, settings


def content(folder: Path) -> dict[str, bytes]:
    """Files below the folder, without those that an agent writes at each start."""
    found = {str(one.relative_to(folder)): one for one in folder.rglob("*") if one.is_file()}
    return {name: one.read_bytes() for name, one in found.items() if not name.startswith(MADE_BY_AGENTS)}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_install_adds_is_removed_by_uninstall(home: Home, tmp_path: Path, name: str) -> None:
    agent, settings = make(tmp_path, name)
    before = content(agent.folder)
    home.must("install", name, env=agent.env)
    done = home.must("install", name, "--json", env=agent.env).json()  # again
    assert Path(done["kept"]).read_bytes() == before[SETTINGS[name][0]]
    listed = subprocess.run([name, "plugin", "list"], env=agent.env, capture_output=True, text=True, check=True)
    assert "waypoint@waypoint" in listed.stdout
    if name == "claude":
        subprocess.run([name, "plugin", "validate", done["plugin"]], env=agent.env, check=True, capture_output=True)
    assert home.must("uninstall", name, "--json", env=agent.env).json()["as_before"]
    assert content(agent.folder) == before
    assert not home.must("uninstall", name, "--json", env=agent.env).json()["was_there"]
    assert settings.read_bytes() == before[SETTINGS[name][0]]


def test_what_the_user_has_changed_since_is_kept(home: Home, tmp_path: Path) -> None:
    agent, settings = make(tmp_path, "claude")
    home.must("install", "claude", env=agent.env)
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model": "other"}))
    assert not home.must("uninstall", "claude", "--json", env=agent.env).json()["as_before"]
    assert json.loads(settings.read_text()) == {"theme": "dark", "hooks": {"Stop": []}, "model": "other"}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be_parsed_are_left_alone(home: Home, tmp_path: Path, name: str) -> None:
    agent, settings = make(tmp_path, name)
    settings.write_text('{"theme": ')
    refused = home.cli("install", name, env=agent.env)
    assert (refused.code, settings.read_text()) == (4, '{"theme": ')
    assert f"{settings}: they cannot be parsed" in refused.stderr
    assert not (agent.folder / ".local").exists()


def test_a_missing_agent_is_named(home: Home, tmp_path: Path) -> None:
    refused = home.cli("install", "codex", env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert refused.code == 3
    assert "there is no program codex in PATH" in refused.stderr


def test_a_command_that_cannot_be_sent_to_its_session_is_denied_and_not_run_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /r/.git/worktrees/tree\n")
    event = {"hook_event_name": "PreToolUse", "cwd": str(tmp_path), "tool_input": {"command": "rm x"}}
    odd = {"hook_event_name": "PreToolUse", "cwd": "/", "tool_input": ["rm x"]}  # no agent sends this today
    words = [sys.executable, "-I", str(HOOK), "/bin/false"]
    env = {"WAYPOINT_BRANCH": "work"}
    for given in (json.dumps(event), json.dumps(odd), "{"):
        done = subprocess.run(words, env=env, input=given, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"
