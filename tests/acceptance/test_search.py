"""A search workflow: fork a prepared session for several candidates at once, keep the best, discard the others, and
return to an earlier checkpoint when a generation does not improve.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.homes import Home, open_home
from tests.session import ledger

pytestmark = [
    pytest.mark.soak(part="load"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

WIDTH = 8
EDITING = ("--timeout", "5")
LOOKING = ("--timeout", "30")

PROGRAM = """
def clamp(value, low, high):
    return value

def mean(values):
    return sum(values) / (len(values) + 1)

def middle(values):
    return values[len(values) // 2]
"""
SCORER = """
import sys
sys.path.insert(0, "/srv/work")
import program
checks = [
    lambda: program.clamp(5, 0, 3) == 3,
    lambda: program.clamp(-5, 0, 3) == 0,
    lambda: program.mean([2, 4]) == 3,
    lambda: program.middle([3, 1, 2]) == 2,
]
def holds(check):
    try:
        return check()
    except Exception:
        return False
print(sum(holds(check) for check in checks))
"""
SERVER = "python3 -m http.server --bind 127.0.0.1 --directory /srv/work 8000 > /dev/null 2>&1 &"
URL = "http://127.0.0.1:8000/program.py"
ASK = f"""python3 -c 'import urllib.request as r; print(len(r.urlopen("{URL}").read()) > 0)'"""
LOOP = "while :; do :; done"
FIX_CLAMP = "sed -i 's/    return value$/    return max(low, min(high, value))/' program.py"
FIX_MEAN = "sed -i 's/(len(values) + 1)/len(values)/' program.py"
FIX_MIDDLE = "sed -i 's/return values\\[/return sorted(values)[/' program.py"
HALF_CLAMP = "sed -i 's/    return value$/    return min(high, value)/' program.py"
BROKEN = [
    "echo 'def (' >> program.py",  # a syntax error
    "rm -rf /srv/work",
    LOOP,
    "kill $!",  # the server of the candidate's session
    "exit 3",  # the session itself
    "echo 'raise SystemExit' >> program.py",
]
GENERATIONS = [
    [HALF_CLAMP, "true", *BROKEN],
    # These start from the half fix, which leads to at most two passed checks.
    [FIX_CLAMP, FIX_MEAN, *BROKEN],
    # These start from the first checkpoint again.
    [f"{FIX_CLAMP}; {FIX_MEAN}; {FIX_MIDDLE}", FIX_MIDDLE, *BROKEN],
]


@dataclass(frozen=True)
class Search:
    """A home with the prepared session `main`."""

    home: Home

    def exec(self, branch: str, text: str, *options: str) -> Any:
        return self.home.cli("exec", "-b", branch, *options, "--", text)

    def try_out(self, start: str, prefix: str, candidates: list[str]) -> dict[str, int]:
        """Fork `start` for each candidate; return the score of each fork, -1 for a candidate that broke something."""
        forks = self.home.must("fork", start, "-n", str(len(candidates)), "--prefix", prefix).stdout.split()
        assert forks == [f"{prefix}-{number}" for number in range(1, len(candidates) + 1)]
        with ThreadPoolExecutor(WIDTH) as threads:
            return dict(zip(forks, threads.map(self.score, forks, candidates), strict=True))

    def score(self, branch: str, candidate: str) -> int:
        edited = self.exec(branch, f"tries=$((tries + 1)); {candidate}", *EDITING)
        served = self.exec(branch, ASK, *LOOKING)
        scored = self.exec(branch, "python3 -B /srv/score.py", *LOOKING)
        is_whole = (edited.code, served.stdout, scored.code) == (0, "True\n", 0)
        return int(scored.stdout) if is_whole and scored.stdout.strip().isdigit() else -1

    def select(self, scores: dict[str, int], name: str) -> int:
        """Checkpoint the best fork as `name`, discard all forks and return the best score."""
        best = max(scores, key=lambda branch: scores[branch])
        self.home.must("checkpoint", name, "-b", best, "--tier", "live")
        live = {row["branch"] for row in self.home.must("ps", "--json").json()}
        self.home.must("stop", "--discard", *(branch for branch in scores if branch in live))
        return scores[best]

    def look(self, name: str, branch: str) -> str:
        """Fork a checkpoint and return the state that the fork shows."""
        self.home.must("fork", name, branch)
        seen = self.exec(branch, "echo $kept $tries; cat program.py; jobs -r | wc -l", *LOOKING)
        assert seen.code == 0
        self.home.must("stop", branch, "--discard")
        return str(seen.stdout)


@pytest.fixture(scope="module")
def search() -> Iterator[Search]:
    with open_home("search") as home:
        home.must("shell", "-d", "main")
        home.must("run", "-i", "--", "sh", "-c", "mkdir /srv/work; cat > /srv/work/program.py", stdin=PROGRAM.encode())
        home.must("run", "-i", "--", "sh", "-c", "cat > /srv/score.py", stdin=SCORER.encode())
        found = Search(home)
        assert found.exec("main", f"cd /srv/work; kept=yes; tries=0; {SERVER}").code == 0
        assert found.exec("main", f"until {ASK} 2> /dev/null; do :; done").stdout.endswith("True\n")
        home.must("checkpoint", "start", "--tier", "live")
        yield found


def test_a_search_over_generations_finds_the_fix_and_discards_the_other_forks(search: Search) -> None:
    home = search.home
    starts = ["start", "best-1", "start"]
    seen = {"start": search.look("start", "before-0")}
    bests = []
    for number, (start, candidates) in enumerate(zip(starts, GENERATIONS, strict=True), 1):
        assert len(candidates) == WIDTH
        scores = search.try_out(start, f"g{number}", candidates)
        assert set(scores.values()) >= {-1}
        bests.append(search.select(scores, f"best-{number}"))
        seen[f"best-{number}"] = search.look(f"best-{number}", f"before-{number}")
    assert bests == [1, 2, 4]
    for name, before in seen.items():
        assert search.look(name, f"after-{name}") == before
        assert before.startswith("yes ")
        assert before.endswith("1\n"), "its server runs"
    assert [row["branch"] for row in home.must("ps", "--json").json()] == ["main"]
    assert search.exec("main", "echo $kept $tries").stdout == "yes 0\n"
    ledger.check(home)
