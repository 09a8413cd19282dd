"""Claude Code and Codex from npm, set up as if they had been used before, with a mock model on the machine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.places import ROOT
from tests.waiting import wait_until

PROGRAMS = ROOT / ".venv/agents/node_modules"
MODELS = ROOT / "tests/workloads/mock_models.py"
KEY = "0123456789abcdefghij"

_CODEX = """model = "gpt-5"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = "http://127.0.0.1:{port}/v1"
env_key = "MOCK_KEY"
wire_api = "responses"
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent of a user whose home folder is `folder`, and its project in `folder`/work."""

    name: str
    folder: Path
    port: int

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def env(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            "PATH": f"{PROGRAMS}/.bin:{PROGRAMS}/@anthropic-ai/claude-code-linux-x64:{os.environ['PATH']}",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.port}",
            "ANTHROPIC_API_KEY": f"sk-ant-{KEY}",
            "MOCK_KEY": "sk-mock",
        }

    def prompt(self, text: str, *, first: bool = False) -> list[str]:
        """The command that sends one prompt and prints the answer; not the `first` one of its conversation."""
        if self.name == "claude":
            return ["claude", "--dangerously-skip-permissions", *([] if first else ["--continue"]), "-p", text]
        flags = ["--skip-git-repo-check", "--dangerously-bypass-hook-trust"]
        return ["codex", "exec", *flags, *([] if first else ["resume", "--last"]), text]

    def make(self) -> None:
        """Write the settings of a user who has used the agent before."""
        for place in (self.work, self.folder / ".claude", self.folder / ".codex"):
            place.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.work)], check=True)
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        state = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY], "rejected": []},
            "projects": {str(self.work): trusted},
        }
        (self.folder / ".claude.json").write_text(json.dumps(state))
        trust = f'\n[projects."{self.work}"]\ntrust_level = "trusted"\n'
        (self.folder / ".codex/config.toml").write_text(_CODEX.format(port=self.port) + trust)


@contextmanager
def mock_model(port: int, log: Path) -> Iterator[None]:
    """Run the mock model on the machine."""
    with subprocess.Popen([sys.executable, "-I", str(MODELS), str(port), str(log)]) as server:
        try:
            wait_until(lambda: _answers(port), "the mock model answers")
            yield
        finally:
            server.kill()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
