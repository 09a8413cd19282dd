"""Runs one workload: starts its program, passes words to it, captures the session, forks it twice, and restores it in
place. After each step, checks that the program still knows its words, as its `Workload` record says.
"""

import contextlib
import functools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.answers import texts
from tests.waiting import PATIENCE_S, holds_within
from tests.workloads.workload import PLACE, Workload
from waypoint.client import Client
from waypoint.client.attach import Attachment
from waypoint.client.results import RunResult
from waypoint.client.sdk import Session
from waypoint.model.facts import CheckpointFacts
from waypoint.model.session_facts import SessionFacts

DUMP_S = 60.0
"""No capture takes longer; most take less than 0.2 s."""
ROWS, COLS = 30, 100
# Waits up to $3 seconds until $1 prints the words in $2, in any order. Otherwise prints the output of $1 and fails.
_KNOWS = """
while ((SECONDS < $3)); do
    said=$(eval "$1" 2>&1 | xargs -n1 | sort | xargs)
    [ "$said" != "$2" ] || exit 0
    sleep 0.05
done
echo "it knows ${said:-nothing} in place of $2"; exit 1
"""
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
_READY = 'while ((SECONDS < 25)); do (eval "$1") >said 2>&1 && exit 0; sleep 0.05; done; cat said; exit 1'
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()*+].|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]()*+])")
_RAW = re.compile(r"[Cc]an't dump|\(criu/|Error \(|fsnotify:|Unknown shit|errno [0-9]+")
"""Raw messages of CRIU, which users should not have to read."""

_AGREED = "^the replaced session is kept without its processes"
"""Reported by a restore with `lose_processes`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: a row of docs/workloads.md."""

    name: str
    tier: str
    paused_ms: float
    restore_ms: float
    degraded: tuple[str, ...]


class Running:
    """A session with the workload, and the words that the workload got there. Use it in `closing`."""

    def __init__(self, row: Workload, session: Session, words: tuple[str, ...]) -> None:
        self.row = row
        self.session = session
        self.words = words
        self._shown = ""

    def begin(self) -> None:
        """Start the workload and wait until it works."""
        row = self.row
        done = self.session.exec(f"mkdir -p {PLACE} && chmod 777 {PLACE} && cd {PLACE} && KEPT=kept\n{row.start}")
        assert done.exit == 0, f"it did not start: {done.output[-2000:].decode(errors='replace')}"
        if row.typed:
            self.type(f"{row.typed}\r")
        if row.shows:
            self.see(row.shows)
        if row.ready:
            self.must(_READY, row.ready)

    def tell(self, word: str) -> None:
        if self.row.keys:
            self.type(self.row.keys.replace("WORD", word))
        else:
            self.must(self.row.tell, word)
        self.words = (*self.words, word)

    def check_told(self) -> None:
        """Check that the workload knows exactly the words that this copy has received, and none of other copies."""
        if self.row.told:
            self.must(_KNOWS, self.row.told, " ".join(sorted(self.words)), str(self.row.patience_s))
        elif self.words:
            self.see(self.words[-1])

    def check_grows(self, beyond: int) -> int:
        """Check that the numbers of the row's `work` continue from `beyond` or later. Return the first number."""
        return (
            int(self.must(_GROWS, self.row.work, str(beyond), str(self.row.patience_s)).stdout) if self.row.work else 0
        )

    def must(self, text: str, *arguments: str) -> RunResult:
        """Run shell text as a separate process in the session. The text must succeed within 30 s."""
        done = self.session.run("timeout", "30", "bash", "-c", text, "row", *arguments, cwd=PLACE)
        assert done.exit == 0, f"{self.session.branch}: {done.exit}: {done.stdout.decode()}{done.stderr.decode()}"
        return done

    def type(self, keys: str) -> None:
        self._terminal.send(keys.encode())
        assert holds_within(PATIENCE_S, lambda: self._terminal.flush() == 0)

    def see(self, pattern: str) -> None:
        """Wait until the terminal has shown the expression since this object first read it."""

        def is_there() -> bool:
            self._terminal.flush()
            self._shown += (self._terminal.receive() or b"").decode(errors="replace")
            return re.search(pattern, _ESCAPES.sub("", self._shown), re.MULTILINE) is not None

        assert holds_within(PATIENCE_S, is_there), f"the terminal does not show {pattern!r}: {self._shown[-2000:]!r}"

    def close(self) -> None:
        if "_terminal" in vars(self):
            self._terminal.close()

    @functools.cached_property
    def _terminal(self) -> Attachment:
        return self.session.attach(ROWS, COLS)


def drive(client: Client, row: Workload, session: Session) -> Outcome:
    """Run all checks in a fresh session. The caller stops the forks."""
    name = f"of-{session.branch}"
    with contextlib.closing(Running(row, session, tuple(row.knows.split()))) as original:
        original.begin()
        if row.early:
            tell_and_check(original, "one")
        at, before = original.check_grows(0), original.words
        taken = session.checkpoint(name)
        check_taken(row, taken)
        original.check_grows(at)
        tell_and_check(original, "original")
        forks = client.fork(name, f"{session.branch}-1", f"{session.branch}-2")
        for fork, word in zip(forks, ("first", "second"), strict=True):
            check_back(row, fork, fork.facts, (before, at, word))
    begun = time.monotonic()
    facts = session.restore(name, lose_processes=row.tier != "live")
    restore_ms = (time.monotonic() - begun) * 1000
    check_back(row, session, facts, (before, at, "again"))
    return Outcome(row.name, taken.tier, taken.paused_ms, restore_ms, tuple(texts(taken.degraded)))


def tell_and_check(running: Running, word: str) -> None:
    if running.row.tell or running.row.keys:
        running.tell(word)
        running.check_told()


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
    assert_again(row, list(iter_fates(facts)))
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
        tell_and_check(copy, own)


def assert_expected(row: Workload, said: list[str]) -> None:
    known = (*row.degraded, *([_AGREED] if row.tier == "respawn" else []))
    unexpected = [line for line in said if _RAW.search(line) or not any(re.search(one, line) for one in known)]
    assert not unexpected, f"degraded: {unexpected}"


def iter_fates(facts: SessionFacts) -> Iterator[str]:
    """Yield what happened to each program that was not kept."""
    for fate, lines in (("respawned", facts.respawned), ("offered", facts.offered), ("lost", texts(facts.lost))):
        yield from (f"{fate} {line}" for line in lines or [])


def assert_again(row: Workload, fates: list[str]) -> None:
    fits = len(fates) == len(row.again) and all(map(str.startswith, fates, row.again))
    assert fits, f"what became of its programs: {fates}"
