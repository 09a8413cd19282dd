"""A campaign: the CRIU that dumps a session is killed again and again, at times that are evenly spread over the dump.

WAYPOINT_TEST_CRIU_KILLS: how often.
"""

import collections
import contextlib
import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import crowd, victims, witness
from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import holds_within, wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client
from waypoint.model.errors import WaypointError

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

KILLS = int(os.environ.get("WAYPOINT_TEST_CRIU_KILLS", "4"))
DEADLINE_S = 20.0  # of a checkpoint; a CRIU that hangs is waited for twice
ANSWER_S = 8.0  # a session that has been harmed may not answer
ROUND_S = 3.0  # of each thread of the crowd, on a busy machine; alone some take 20 ms


class Campaign:
    """Sessions, forks of one capture, each in use until it is harmed. `killed`: how often a CRIU was killed as it
    dumped one.
    """

    def __init__(self, home: Home, pauses: Pauses) -> None:
        self.home, self.client = home, Client(home.path)
        self._pauses = pauses
        self.killed = 0
        self._numbers = itertools.count()
        first = self.client.start("first", user="nobody")
        first.exec(f"{witness.ASK}; steps=0; pids=")
        for program in ("sleep 100000", f"python3 {witness.__file__} /tmp", f"python3 {crowd.__file__}"):
            first.exec(f'{program} >/dev/null 2>&1 & pids+=" $!"')
        wait_until(lambda: b"memory" in first.exec("ask look 2>&1").output, "the witness answers")
        wait_until(lambda: b"timer" in first.exec(f"{crowd.ASK} 2>&1").output, "the crowd answers")
        first.checkpoint("whole", tier="live")
        first.stop(discard=True)
        self.begin()
        self.dump_s = statistics.median(self.dump(None) for _ in range(3))

    def begin(self) -> None:
        """Go on with a session that is whole."""
        self._count = 0
        self._session = self.client.fork("whole", f"b{next(self._numbers)}")[0]

    def leave(self) -> None:
        """End the session, which may have ended by itself."""
        with contextlib.suppress(WaypointError):
            self._session.stop(discard=True)

    def dump(self, kill_after_s: float | None, *also: str) -> float:
        """Make a checkpoint. So long after the session was frozen for it, its CRIU is killed, and the parts `also`;
        None: not at all. Returns the seconds from the freeze to CRIU's end.
        """
        argv = self.home.argv("checkpoint", f"k{next(self._numbers)}", "--tier", "live", "-b", self._session.branch)
        pipe = subprocess.PIPE
        with (
            self._pauses.armed(Step.FROZEN) as armed,
            subprocess.Popen(argv, env=self.home.env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as command,
        ):
            assert armed.wait() == Step.FROZEN
            others = [pid for part in also for pid in victims.pids(self.home, part)]
            (criu,) = ledger.dumping_pids(self.home)
            ended = os.pidfd_open(criu)
            begin = time.monotonic()
            armed.go_on()
            if kill_after_s is not None:
                self.killed += not select.select([ended], [], [], kill_after_s)[0]
                for pid in (criu, *others):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            select.select([ended], [], [], DEADLINE_S)
            taken_s = time.monotonic() - begin
            os.close(ended)
            said = command.communicate(timeout=DEADLINE_S)[1].decode()
        assert also or command.returncode == 0 or self.harm(), said
        return taken_s

    def harm(self) -> str:
        """What of the session is not as it was before; empty if nothing."""
        if self._session.branch not in {row.branch for row in self.client.sessions()}:
            return "the session has ended"
        return self._harm_to_programs() or self._harm_to_witness() or self._harm_to_crowd()

    def _harm_to_programs(self) -> str:
        said = self._ask("for pid in $pids; do kill -0 $pid || { wait $pid; echo $?; }; done; echo asked").split()
        if said[-1:] != ["asked"]:
            return "the shell does not answer"
        return " and ".join(f"a program has ended with {status}" for status in said[:-1])

    def _harm_to_witness(self) -> str:
        self._count += 1
        answer, _, steps = self._ask("ask add; steps=$((steps + 1)); echo $steps").rstrip().partition("\n")
        if not answer:
            holds_within(1.0, lambda: bool(self._harm_to_programs()))  # the witness ends when its peer has ended
            return self._harm_to_programs() or "a connection or a port is lost"
        counts = {*json.loads(answer).values(), int(steps)}
        return "" if counts == {self._count} else f"{self._count} were added, there are {counts}"

    def _harm_to_crowd(self) -> str:
        """A thread that does not come around any more, or has found something wrong."""
        answer = self._ask(crowd.ASK)
        if not answer.strip():
            return "a port is lost"
        before = json.loads(answer)
        waiting, wrong = dict(before["rounds"]), []

        def is_over() -> bool:
            now = json.loads(self._ask(crowd.ASK))
            wrong[:] = now["wrong"]
            for name in [name for name, rounds in waiting.items() if now["rounds"][name] > rounds]:
                del waiting[name]
            return bool(wrong) or not waiting

        is_well = holds_within(ROUND_S, is_over) and not wrong
        return "" if is_well else f"in the crowd: {sorted(wrong) or f'{sorted(waiting)} stand still'}"

    def _ask(self, command: str) -> str:
        """What the command prints; empty if it is not answered."""
        with contextlib.suppress(WaypointError):
            done = self._session.exec(f"{{ {command}; }} 2>/dev/null", timeout_s=ANSWER_S, wait_prompt_s=ANSWER_S)
            return done.output.decode()
        return ""


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    pauses = Pauses(tmp_path)
    with pauses.open_home("kills") as home:
        yield Campaign(home, pauses)


def strike(campaign: Campaign, kills: int, also: tuple[str, ...], harms: collections.Counter[str]) -> None:
    """Kill so many CRIUs, of which some have ended by then, and count in `harms` what that did to their sessions."""
    first = campaign.killed
    for number in range(4 * kills):
        if number >= kills and campaign.killed - first > kills / 3:
            return
        before = campaign.killed
        taken_s = campaign.dump(campaign.dump_s * (number % kills) / kills, *also)
        if campaign.killed == before:  # too late: the machine was busier when the dumps were measured
            campaign.dump_s = min(campaign.dump_s, taken_s)
        if harm := campaign.harm():
            harms[harm] += 1
            campaign.leave()
            campaign.begin()
    assert campaign.killed - first > kills / 3


@pytest.mark.timeout(120 + 12 * KILLS)
@pytest.mark.parametrize("also", [(), ("daemon",)], ids=["criu", "criu and daemon"])
def test_a_session_whose_criu_is_killed_while_it_dumps_is_whole(campaign: Campaign, also: tuple[str, ...]) -> None:
    """But for one program of it, in the microseconds in which it runs code of CRIU's: that may end by a signal. Three
    such programs of a dozen sessions may be bad luck, so that three dozen more are asked.
    """
    harms: collections.Counter[str] = collections.Counter()
    kills = KILLS // 4 if also else KILLS
    strike(campaign, kills, also, harms)
    if harms.total() > victims.most_harmed(campaign.killed):
        strike(campaign, 3 * kills, also, harms)
    ledger.check(campaign.home)
    print(f"killed {campaign.killed}, a dump takes {1000 * campaign.dump_s:.0f} ms, harmed: {dict(harms)}")
    assert harms.keys() <= {f"a program has ended with {status}" for status in victims.STATUS_BY_CRIU}
    assert harms.total() <= victims.most_harmed(campaign.killed)
