"""Runs one workload: starts its program, passes words to it, captures the session, forks it twice, and restores it in
place. After each step, checks that the program still knows its words, as its `Workload` record says.
"""

import contextlib
import re
import time
from dataclasses import dataclass

from tests.answers import texts
from tests.workloads.workload import PLACE, Workload
from waypoint.client import Client
from waypoint.client.program_trial import AGREED, ProgramRun, fates
from waypoint.client.sdk import Session
from waypoint.model.facts import CheckpointFacts
from waypoint.model.session_facts import SessionFacts

DUMP_S = 60.0
"""No capture takes longer; most take less than 0.2 s."""
# Waits until $1 prints a number above $2; prints its first number. Fails if the numbers do not grow or begin below $2.
_GROWS = """
first=$(eval "$1")
[ "$first" -ge "$2" ] || { echo "it is at $first and was at $2"; exit 1; }
while ((SECONDS < $3)); do
    [ "$(eval "$1")" -le "$2" ] || { echo $first; exit 0; }
    sleep 0.05
done
echo "it stays at $2"; exit 1
"""
_RAW = re.compile(r"[Cc]an't dump|\(criu/|Error \(|fsnotify:|Unknown shit|errno [0-9]+")
"""Raw messages of CRIU, which users should not have to read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: a row of docs/workloads.md."""

    name: str
    tier: str
    paused_ms: float
    restore_ms: float
    degraded: tuple[str, ...]


class Running(ProgramRun):
    """A session with the workload, and the words that the workload got there. Use it in `closing`."""

    def __init__(self, row: Workload, session: Session, words: tuple[str, ...], path: str = "") -> None:
        super().__init__(row, session, words, place=PLACE, path=path)
        self.row = row

    def check_grows(self, beyond: int) -> int:
        """Check that the numbers of the row's `work` continue from `beyond` or later. Return the first number."""
        return (
            int(self.must(_GROWS, self.row.work, str(beyond), str(self.row.patience_s)).stdout) if self.row.work else 0
        )


def drive(client: Client, row: Workload, session: Session, path: str = "") -> Outcome:
    """Run all checks in a fresh session. The caller stops the forks. `path`: the PATH of the program, if not the
    session's.
    """
    name = f"of-{session.branch}"
    with contextlib.closing(Running(row, session, tuple(row.knows.split()), path)) as original:
        original.begin()
        if row.early:
            original.tell_and_check("one")
        at, before = original.check_grows(0), original.words
        taken = session.checkpoint(name)
        check_taken(row, taken)
        original.check_grows(at)
        original.tell_and_check("original")
        forks = client.fork(name, f"{session.branch}-1", f"{session.branch}-2")
        for fork, word in zip(forks, ("first", "second"), strict=True):
            check_back(row, fork, fork.facts, (before, at, word))
    begun = time.monotonic()
    facts = session.restore(name, lose_processes=row.tier != "live")
    restore_ms = (time.monotonic() - begun) * 1000
    check_back(row, session, facts, (before, at, "again"))
    return Outcome(row.name, taken.tier, taken.paused_ms, restore_ms, tuple(texts(taken.degraded)))


def check_taken(row: Workload, taken: CheckpointFacts) -> None:
    """Check the capture's tier, duration and `degraded` against the row."""
    said = texts(taken.degraded)
    assert taken.tier == row.tier, f"the tier is {taken.tier}: {said}"
    assert taken.total_ms < DUMP_S * 1000
    assert said or taken.tier == "live", "the capture has no reason why it is not live"
    assert_expected(row, said)


def check_back(
    row: Workload, session: Session, facts: SessionFacts, expected: tuple[tuple[str, ...], int, str]
) -> None:
    """Check that a copy has the words and the work of the capture (`expected`), then send it its own word.

    Programs that were started again have lost their words; the shell has not.
    """
    words, at, own = expected
    assert_expected(row, texts(facts.degraded))
    assert_again(row, list(fates(facts)))
    if row.tier != "live":
        assert session.exec('[ "$KEPT" = kept ]').exit == 0, "the shell has lost a variable"
        return
    kept = tuple(word for word in words if word not in row.gone.split())
    with contextlib.closing(Running(row, session, kept)) as copy:
        if (
            row.early and words and not (row.keys and row.told)
        ):  # other programs show their words only after a further word
            copy.check_told()
        copy.check_grows(at)
        copy.tell_and_check(own)


def assert_expected(row: Workload, said: list[str]) -> None:
    known = (*row.degraded, *([AGREED] if row.tier == "respawn" else []))
    unexpected = [line for line in said if _RAW.search(line) or not any(re.search(one, line) for one in known)]
    assert not unexpected, f"degraded: {unexpected}"


def assert_again(row: Workload, fates: list[str]) -> None:
    fits = len(fates) == len(row.again) and all(map(str.startswith, fates, row.again))
    assert fits, f"what became of its programs: {fates}"
