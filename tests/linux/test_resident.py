"""The resident memory of processes: what is shared with others, and what is their own."""

import os
import subprocess
import sys

from waypoint.linux.tasks import procfs

MIB = 1 << 20

HOLDER = """
import os, sys
held = bytearray(os.urandom(32 << 20))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
print("ended", flush=True)
sys.stdin.read()
"""


def test_memory_that_a_fork_shares_is_not_its_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        both = procfs.resident(holder.pid)
        assert both.own < 32 * MIB < both.all
        assert both.own < both.share < both.all - 8 * MIB
        os.kill(child, 9)
        assert holder.stdout.readline() == b"ended\n"
        alone = procfs.resident(holder.pid)
        assert alone.own > 32 * MIB
        holder.kill()


def test_a_process_that_has_ended_has_no_memory() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert procfs.resident(ended.pid) == (0, 0, 0)
