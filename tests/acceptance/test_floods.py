"""A session that floods the daemon with work delays the commands of another session by at most 20 ms more than a
session whose program only computes.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S
from waypoint.client import Client

pytestmark = [pytest.mark.soak(part="timing"), pytest.mark.privileged]

ASKS = 60
WITHIN_MS = 20.0
WAYS = 3
"""The number of attempts. Each measures beside the flood and beside the computing program; one must be in time."""

COMPUTING = "print('begun', flush=True)\nwhile True: pass"
_RINGING = "print('begun', flush=True)\nwhile True: os.write(bell, b'!' * 100)"
_BELL = "import os\nbell = os.open('/run/waypoint/bell', os.O_WRONLY)\n"
_NAMES = "for i in range({}): os.close(os.open(f'/run/waypoint/{}{{i}}', os.O_CREAT | os.O_WRONLY))\n"
_TERMINAL = "import os\ntty = os.open('/dev/pts/0', os.O_WRONLY | os.O_NOCTTY)\nprint('begun', flush=True)\n"
FLOODS = {
    "rings": _BELL + _RINGING,
    "rings over names of requests": _BELL + _NAMES.format(4096, "r.9.9x") + _RINGING,
    "rings over 50,000 names": _BELL + _NAMES.format(50000, "x") + _RINGING,
    "requests": _BELL
    + r"""
import itertools, threading
print('begun', flush=True)
def work(thread):
    for number in itertools.count():
        ident = f'{thread}.{number % 10000}'
        os.mkfifo(f'/run/waypoint/a.{ident}')
        with open(f'/run/waypoint/t.{ident}', 'w') as file:
            file.write(['op\nlog\n-n\n256\n', 'restore\nnosuch\n', 'ps\n', 'logs\n'][number % 4])
        os.rename(f'/run/waypoint/t.{ident}', f'/run/waypoint/r.{ident}')
        os.write(bell, b'!')
        with open(f'/run/waypoint/a.{ident}', 'rb') as file:
            file.read()
        os.unlink(f'/run/waypoint/a.{ident}')
for thread in range(1, 17):
    threading.Thread(target=work, args=(thread,)).start()
""",
    "requests of a terabyte": _BELL
    + r"""
for number in range(64):
    with open(f'/run/waypoint/r.7.{number}', 'w') as file:
        file.truncate(1 << 40)
"""
    + _RINGING,
    "text": _TERMINAL + "while True: os.write(tty, b'abcdefghijklmnopqrstuvwxyz\\n' * 1000)",
    "escape sequences": _TERMINAL + r"while True: os.write(tty, b'\x1b[?1h\x1b[?2004l\x1b=\x1b[?25h' * 3000)",
    "marks": _TERMINAL
    + r"""
nonce = open('/run/waypoint/nonce', 'rb').read().strip()
marks = b''.join(b'\x1b]7717;P;%d;%b;bash\x07' % (pid, nonce) for pid in (1, 99999)) * 2000
while True: os.write(tty, marks)
""",
}


@pytest.fixture(scope="module")
def homes() -> Iterator[tuple[Home, Client]]:
    with open_home("floods") as home:
        home.must("shell", "good", "-d", "--user", "root")
        yield home, Client(home.path)


def exec_ms(home: Home, client: Client, program: str) -> float:
    """Return the median duration of a command in the session `good` while the program runs in the session `evil`."""
    home.must("shell", "evil", "-d", "--user", "root")
    good, took = client.session("good"), []
    with home.background("run", "-b", "evil", "--", "python3", "-I", "-S", "-c", program) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        for _ in range(ASKS):
            began = time.perf_counter()
            assert good.exec("true").exit == 0
            took.append(1000 * (time.perf_counter() - began))
    home.must("stop", "evil", "--discard")
    return statistics.median(took)


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_from_one_session_does_not_delay_another(homes: tuple[Home, Client], flood: str) -> None:
    pairs = []
    for _ in range(WAYS):
        pairs.append((exec_ms(*homes, flood), exec_ms(*homes, COMPUTING)))
        if pairs[-1][0] < pairs[-1][1] + WITHIN_MS:
            return
    raise AssertionError(f"ms beside a flood and beside a computation: {pairs}")


CAPTURING = """
import itertools, subprocess, sys
print('begun', flush=True)
for number in itertools.count():
    words = ['checkpoint', '--force', sys.argv[1] + '-cp']
    if number % 8 == 7:
        words = ['fork', sys.argv[1], f'{sys.argv[1]}-of-{number}']
    subprocess.run(['waypoint', *words], capture_output=True)
"""
CROWD = [f"crowd-{number}" for number in range(12)]
EXEC_S, CHECKPOINT_S = 2.0, 10.0
"""Limits for a command and for a checkpoint while twelve other sessions are checkpointed without a break."""


@pytest.mark.requires("criu")
def test_sessions_that_checkpoint_themselves_all_the_time_do_not_delay_others(homes: tuple[Home, Client]) -> None:
    home, client = homes
    home.must("shell", "evil", "-d", "--user", "root")
    home.must("fork", "evil", *CROWD)
    with contextlib.ExitStack() as running:
        for branch in CROWD:
            program = ("python3", "-I", "-S", "-c", CAPTURING, branch)
            command = running.enter_context(home.background("run", "-b", branch, "--", *program))
            assert command.stdout is not None
            assert command.stdout.readline() == b"begun\n"
        good, took = client.session("good"), []
        for _ in range(ASKS // 3):
            began = time.perf_counter()
            assert good.exec("true").exit == 0
            took.append(time.perf_counter() - began)
        assert statistics.median(took) < EXEC_S
        home.must("checkpoint", "of-good", "-b", "good", timeout_s=CHECKPOINT_S)
        home.must("shell", "new", "-d", "--user", "root", timeout_s=CHECKPOINT_S)
        home.must("stop", "evil", "--discard", timeout_s=CHECKPOINT_S)
    home.must("stop", "--files", "--all", timeout_s=PATIENCE_S + len(CROWD))
    home.must("shell", "good", "-d", "--user", "root")
