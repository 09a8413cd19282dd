"""A daemon with nothing to do does nothing at all."""

import contextlib
import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.kept_home import KeptHome, kept_home
from tests.daemon.raw_client import RawClient
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.soak(part="outages"), pytest.mark.privileged]
WATCHED_S = 3.0  # a time of rest, in which whatever comes every second would come three times


@pytest.fixture
def home(tmp_path: Path) -> Iterator[KeptHome]:
    with kept_home(tmp_path / "home") as home:
        yield home


def wake_ups(pid: int) -> int:
    """How often the process's threads have been put to work, since their start."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            lines = (task / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


@pytest.mark.requires("perf-cgroup")
def test_with_idle_clients_neither_process_wakes_up(home: KeptHome) -> None:
    home.start()
    pids = [home.daemon_pid(), home.supervisor_pid()]
    with ExitStack() as stack:
        for number in range(20):
            client = stack.enter_context(RawClient(home.socket))
            if number % 3:
                assert client.ask("GET", "/v1/status").status == 200
            if number % 3 == 2:
                client.ask("POST", "/v1/sessions", {"branch": "main"})
                assert client.upgrade("/v1/sessions/main/attach").status == 101
        # Goodbyes of earlier clients may take a second; then nothing is left to wait for.
        silence = select.poll()
        silence.poll(1500)

        def rests() -> bool:
            before = [wake_ups(pid) for pid in pids]
            silence.poll(WATCHED_S * 1000)
            return [wake_ups(pid) for pid in pids] == before

        wait_until(rests, "neither process wakes up", PATIENCE_S)  # a busy machine is slow to say goodbye


def test_the_supervisor_is_small(home: KeptHome) -> None:
    home.start()
    home.daemon_pid()
    lines = Path(f"/proc/{home.supervisor_pid()}/status").read_text().splitlines()
    (resident,) = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
    assert resident <= 12 * 1024
