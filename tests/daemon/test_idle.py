"""An idle daemon and its supervisor use no processor time and little memory."""

import contextlib
import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.raw_client import RawClient
from tests.daemon.supervised_home import SupervisedHome, supervised_home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.soak(part="outages"), pytest.mark.privileged]
WATCHED_S = 3.0  # a timer of one second would fire three times


@pytest.fixture
def home(tmp_path: Path) -> Iterator[SupervisedHome]:
    with supervised_home(tmp_path / "home") as home:
        yield home


def wake_ups(pid: int) -> int:
    """Return the number of context switches of the process's threads since their start."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            lines = (task / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


@pytest.mark.requires("perf-cgroup")
def test_with_idle_clients_neither_process_wakes_up(home: SupervisedHome) -> None:
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
        # The server may take a second to close the connections of earlier clients.
        silence = select.poll()
        silence.poll(1500)

        def rests() -> bool:
            before = [wake_ups(pid) for pid in pids]
            silence.poll(WATCHED_S * 1000)
            return [wake_ups(pid) for pid in pids] == before

        wait_until(rests, "neither process wakes up", PATIENCE_S)  # connections are closed later on a busy machine


def test_the_supervisor_uses_at_most_12_mib(home: SupervisedHome) -> None:
    home.start()
    home.daemon_pid()
    lines = Path(f"/proc/{home.supervisor_pid()}/status").read_text().splitlines()
    (resident,) = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
    assert resident <= 12 * 1024
