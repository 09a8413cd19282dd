"""Commands import few modules, so that they start fast. Modules are counted, as a busy machine spoils times."""

import re
import subprocess

import pytest

from tests.homes import Home

pytestmark = pytest.mark.privileged

SLOW = {"click", "re", "json", "socket", "argparse", "typing", "dataclasses", "enum", "functools", "subprocess", "site"}
# The interpreter imports about 25; each further module costs about 0.2 ms.
MOST_MODULES = 60


def imported(home: Home, words: str, code: int) -> set[str]:
    """Return the names of the modules that the command imports."""
    python, *rest = home.argv(*words.split())
    done = subprocess.run(
        [python, "-X", "importtime", *rest], env=home.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == code, done.stderr
    return set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr.decode(), re.MULTILINE))


def test_frequent_commands_import_few_modules(home: Home) -> None:
    home.must("shell", "-d")
    home.must("checkpoint", "c", "--force")
    commands = {
        "exec -- true": 0,
        "run true": 0,
        "exec -i -- cat": 0,
        "shell -d": 0,
        "checkpoint c --force -m a-message --tier auto": 0,
        "checkpoint c --force --json": 0,
        "restore c": 0,
        "restore c --json": 0,
        "fork c -n 2 --prefix loads-little": 0,
        "fork c loads-little --json": 0,
        "exec -b bad! -- true": 2,
        "run -b nosuch true": 125,
        "checkpoint bad!": 2,
        "fork nosuch x": 2,
        "restore nosuch": 2,
    }
    failed = []
    for words, code in commands.items():
        loaded = imported(home, words, code)
        if SLOW & loaded or (code == 0 and len(loaded) >= MOST_MODULES):
            failed.append((words, SLOW & loaded, len(loaded)))
    assert not failed, failed


def test_only_help_imports_click(home: Home) -> None:
    commands = {
        "ps": 0,
        "stop --all --json": 0,
        "ps --nosuch": 2,
        "log --all": 0,
        "show nosuch": 2,
        "branch": 0,
        "op log -n 3": 0,
        "undo 123456": 2,
        "gc --dry-run": 0,
        "du": 0,
        "events": 0,
        "daemon status": 0,
        "setup --check": 0,
        "op": 2,
        "log --help": 0,
    }
    loading = [words for words, code in commands.items() if "click" in imported(home, words, code)]
    assert loading == ["op", "log --help"]
