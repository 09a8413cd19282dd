"""`waypoint profile`, the profiles of a home, and the remedies in refused checkpoints."""

import os

import pytest

from tests.agents.cli_agents import PROGRAMS as AGENTS
from tests.homes import Home
from waypoint.processes.profiles import Profiles

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "criu")]

OWN = {one.name: one for one in Profiles().all()}
# A shell that works as long as its profile says, so that a test can tell it from a program that forgets.
FORGETS = """
reason = "shows a failed test"
[match]
programs = ["cat"]
[env]
OF_MY_PROFILE = "set"
[test]
told = "echo nothing"
tell = "true"
patience_s = 1
"""


def holding_tty(name: str) -> str:
    """Shell text that starts a process which calls itself `name` and keeps /dev/tty open."""
    return f"bash -c 'exec 3<>/dev/tty; exec -a {name} sleep 1000' &"


def test_a_refused_program_gets_the_remedy_of_its_profile(home: Home, branch: str) -> None:
    remedy = OWN["perl"].remedies["criu-dev-tty"]
    home.must("exec", "-b", branch, "--", holding_tty("perl"))
    found = home.cli("doctor", branch, "--json")
    assert [row["remedy"] for row in found.json() if row["code"] == "criu-dev-tty"] == [remedy]
    refused = home.cli("checkpoint", f"c-{branch}", "-b", branch, "--tier", "live", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (5, "criu-dev-tty")
    assert remedy in refused.json()["error"]["next"]


@pytest.mark.soak(part="workloads")
def test_the_test_of_a_profile_prints_its_steps_and_leaves_nothing(home: Home) -> None:
    done = home.cli("profile", "test", "shell")
    assert done.code == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        [step, "ok"] for step in ("start", "checkpoint", "original", "forks", "restore")
    ]
    assert [one["branch"] for one in home.must("ps", "--all", "--json").json() if "test-shell" in one["branch"]] == []
    assert home.must("list", "--json").json() == []


def test_files_of_the_home_are_profiles_and_errors_are_reported(home: Home) -> None:
    folder = home.path / "profiles"
    folder.mkdir()
    (folder / "mine.toml").write_text(FORGETS)
    (folder / "bad.toml").write_text("raison = 'x'")
    try:
        listed = {one["name"]: one for one in home.must("profile", "list", "--json").json()}
        assert listed.keys() == {"mine", "bad", *OWN}
        assert listed["bad"]["problem"].startswith("raison: there is no such key; known keys: ")
        assert "not used: raison" in home.must("profile", "list").stdout
        shown = home.must("profile", "show", "mine")
        assert "OF_MY_PROFILE=set" in shown.stdout
        assert "shows a failed test" in shown.stdout
        unknown = home.cli("profile", "show", "bad")
        assert (unknown.code, str(folder / "bad.toml") in unknown.stderr) == (2, True)
        assert "did you mean mine?" in home.cli("profile", "show", "mien").stderr
        failed = home.cli("profile", "test", "mine", "--json")
        assert failed.code == 1
        assert [(step["step"], step["ok"]) for step in failed.json()] == [("start", False)]
        assert "it knows nothing in place of one" in failed.json()[0]["said"]
        (folder / "mine.toml").write_text(f"{FORGETS}uses = ['no-such-program']\ndebian = ['its-package']\n")
        missing = home.cli("profile", "test", "mine")
        assert (missing.code, "apt-get install its-package" in missing.stderr) == (3, True)
        home.must("shell", "with-profile", "-d")
        assert home.must("exec", "-b", "with-profile", "--", "echo $OF_MY_PROFILE").stdout == "set\n"
    finally:
        home.cli("stop", "with-profile", "--discard")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


PROGRAMS = {
    **{name: ("node", "agents") for name in ("claude", "codex")},
    "dash": (),
    "jvm": ("java",),
    "node": ("node",),
    "perl": (),
    "python": (),
    "tmux": ("tmux",),
}
"""Profiles whose programs `./dev setup` installs, and the needs of their tests. tests/workloads tries the others."""


@pytest.mark.soak(part="workloads")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.requires(*needs)) for name, needs in PROGRAMS.items()]
)
def test_a_program_survives_as_its_profile_says(home: Home, name: str) -> None:
    path = f"{AGENTS}/.bin:{AGENTS}/@anthropic-ai/claude-code-linux-x64:{os.environ['PATH']}"
    done = home.cli("profile", "test", name, env={"PATH": path})
    assert done.code == 0, done.stdout + done.stderr
