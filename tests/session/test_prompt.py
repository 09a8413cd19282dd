"""The probe for the shell's prompt."""

import os
from pathlib import Path

import pytest

from shellwrap.ring import Ring
from tests.terminals import open_pair
from waypoint.linux.tasks import procfs
from waypoint.terminal.hooks import prompt
from waypoint.terminal.hooks.prompt import Look, Shell
from waypoint.terminal.hooks.shell_watch import ShellWatch
from waypoint.terminal.terminal import Terminal

KTHREADD = 2
"""A process without memory, as a shell is that is being killed and is no zombie yet."""


def test_a_shell_that_has_given_up_its_memory_has_ended_and_was_not_replaced() -> None:
    started = procfs.stat(KTHREADD).start_ticks
    shell = Shell(KTHREADD, started, 1, "bash", "/bin/bash", code_start=1 << 30, stack_start=1 << 40)
    assert prompt.look(-1, shell) is Look.GONE


def test_a_shell_with_another_memory_was_replaced() -> None:
    pid = os.getpid()
    shell = Shell(pid, procfs.stat(pid).start_ticks, 1, "bash", "/bin/bash", code_start=1 << 30, stack_start=1 << 40)
    assert prompt.look(-1, shell) is Look.REPLACED


async def test_why_a_shell_cannot_be_asked_is_found_among_few_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may have as many as it likes, and all sessions wait for the answer."""
    master, slave = open_pair()
    terminal = Terminal(master, Ring.create(str(tmp_path / "ring"), 1 << 21))
    watch = ShellWatch(terminal, "nonce", lambda: [os.getpid()] * 100_000)
    looked, stat = list[int](), procfs.stat
    monkeypatch.setattr(procfs, "stat", lambda pid: looked.append(pid) or stat(pid))
    try:
        assert "it takes a bash or zsh that Waypoint has started" in watch.obstacle(Look.BUSY)
        assert len(looked) < 1000
    finally:
        terminal.close()
        os.close(slave)
