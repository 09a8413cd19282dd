"""The check whether a shell is at its prompt recognises shells that have ended or were replaced."""

import os

from waypoint.linux.tasks import procfs
from waypoint.terminal.hooks import prompt
from waypoint.terminal.hooks.prompt import Look, Shell

KTHREADD = 2
"""A process without memory, like a shell that is being killed and is not yet a zombie."""


def test_a_shell_without_memory_has_ended() -> None:
    started = procfs.stat(KTHREADD).start_ticks
    shell = Shell(KTHREADD, started, 1, "bash", "/bin/bash", code_start=1 << 30, stack_start=1 << 40)
    assert prompt.look(-1, shell) is Look.GONE


def test_a_shell_at_other_memory_addresses_was_replaced() -> None:
    pid = os.getpid()
    shell = Shell(pid, procfs.stat(pid).start_ticks, 1, "bash", "/bin/bash", code_start=1 << 30, stack_start=1 << 40)
    assert prompt.look(-1, shell) is Look.REPLACED
