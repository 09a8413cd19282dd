"""Real coding agents from npm in a terminal, with a mock model. Each is captured in the middle of an answer, with
unsent text in its input line, and continues in the original and in every copy.
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.screen import Screen, open_screen
from tests.acceptance.sessions import session
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.isolation.outside import public_folder
from tests.waiting import PATIENCE_S, holds_within, wait_until

pytestmark = [
    pytest.mark.soak(part="workloads"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "criu", "tmux", "npm", "node", "network"),
]

INSTALL_S = 240.0  # npm fetches 200 MB
PACKAGES = ("@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.169.0")
MODELS = Path(__file__).with_name("mock_models.py")
PORT = 4010
PLACE = "/root/agent"
LOG = f"{PLACE}/log"
KEY = "0123456789abcdefghij"

# Configures the agents as if they had been used before, so that they ask no questions.
SETUP = f"""
mkdir -p {PLACE}/work {PLACE}/.codex; cd {PLACE}/work; git init -q .
export HOME={PLACE} DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
export ANTHROPIC_BASE_URL=http://127.0.0.1:{PORT} ANTHROPIC_API_KEY=sk-ant-{KEY} MOCK_KEY=sk-mock
cat >{PLACE}/.claude.json <<end
{{"hasCompletedOnboarding": true, "theme": "dark", "customApiKeyResponses": {{"approved": ["{KEY}"], "rejected": []}},
 "projects": {{"{PLACE}/work": {{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}}}}}}
end
cat >{PLACE}/.codex/config.toml <<end
model = "gpt-5"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.mock]
name = "mock"
base_url = "http://127.0.0.1:{PORT}/v1"
env_key = "MOCK_KEY"
wire_api = "responses"
[projects."{PLACE}/work"]
trust_level = "trusted"
end
python3 {PLACE}/models.py {PORT} {LOG} &
until ss -Htln sport = {PORT} | grep -q .; do sleep 0.05; done
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """`command`: its path in node_modules. `sign`: the prompt of the input line."""

    command: str
    sign: str

    def input(self, text: str) -> str:
        """Return a pattern for the input line with this text."""
        return rf"^{self.sign}\s*{text}"


AGENTS = {
    "claude": Agent(
        "@anthropic-ai/claude-code-linux-x64/claude", "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
    ),
    "codex": Agent(".bin/codex", "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"),
}


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The folder with the packages, which every session sees."""
    with public_folder("agents") as folder:
        words = [
            "npm",
            "install",
            "--no-fund",
            "--no-audit",
            "--prefix",
            str(folder),
            "--cache",
            f"{folder}/cache",
            *PACKAGES,
        ]
        subprocess.run(words, check=True, capture_output=True, timeout=INSTALL_S)
        yield folder / "node_modules"


@pytest.fixture(scope="module")
def home(installed: Path) -> Iterator[Home]:
    with open_home("agents") as made:
        yield made


def submit(screen: Screen, text: str, answer: str) -> None:
    """Write a message and send it. Agents take an Enter soon after a text as part of the text, so press it until the
    answer (a pattern) is shown.
    """
    screen.type(text)
    screen.see(re.escape(text))

    def is_answered() -> bool:
        screen.press("Enter")
        return holds_within(1.0, lambda: re.search(answer, screen.text(), re.MULTILINE) is not None)

    wait_until(is_answered, f"the screen shows {answer!r}", PATIENCE_S)


def log_of(home: Home, branch: str) -> list[str]:
    """Return the user's messages that the model got."""
    return home.must("run", "-b", branch, "--", "grep", ".", LOG).stdout.splitlines()


def leave(screen: Screen) -> None:
    screen.press("C-]")
    screen.type("d")
    screen.see("^outside>$")


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_continues_in_every_copy(home: Home, installed: Path, name: str) -> None:
    agent = AGENTS[name]
    with session(home, "root") as branch, open_screen(home, 40, 110) as screen:
        put = f"mkdir -p {PLACE}; cat >{PLACE}/models.py"
        home.must("run", "-i", "-b", branch, "--", "sh", "-c", put, stdin=MODELS.read_bytes())
        home.must("exec", "-b", branch, "--", SETUP)
        screen.type(f"waypoint attach {branch}")
        screen.press("Enter")
        screen.see(rf"^\[{branch}\]")
        screen.type(f"clear; {installed}/{agent.command}")
        screen.press("Enter")
        screen.see(agent.input(""))
        submit(screen, "the first message", "ANSWER 1 to the first message$")
        submit(screen, "now slowly please", "word 1")
        screen.type("not sent")
        screen.see(agent.input("not sent"))
        taken = home.must("checkpoint", f"of-{name}", "-b", branch, "--tier", "live", "--json").json()
        assert unusual(taken["degraded"]) == []
        copies = [home.must("fork", f"of-{name}", f"{branch}-{n}").stdout.strip() for n in (1, 2)]
        screen.see(r"word 9\b")  # the original continues
        for which in (branch, *copies):
            if which != branch:
                leave(screen)
                screen.type(f"clear; waypoint attach {which}")
                screen.press("Enter")
                screen.see("ANSWER 1 to the first message$")
                screen.see(r"word 9\b")
            screen.see(agent.input("not sent"))
            submit(screen, f" yet by {which}", f"ANSWER 3 to not sent yet by {which}$")
        said = {which: log_of(home, which)[-1] for which in (branch, *copies)}
        assert said == {which: f"not sent yet by {which}" for which in (branch, *copies)}
        leave(screen)
        home.must("restore", f"of-{name}", "-b", branch)
        screen.type(f"clear; waypoint attach {branch}")
        screen.press("Enter")
        screen.see(r"word 9\b")
        submit(screen, " after the restore", "ANSWER 3 to not sent after the restore$")
        wait_until(lambda: log_of(home, branch)[-1] == "not sent after the restore", "the model got the message")
