"""The search workflow: from one prepared session, generations of candidates side by side, the best kept, the others
thrown away, and back to an earlier one when it leads nowhere.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.faults import EACH
from tests.homes import Home, open_home
from tests.session import ledger

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

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
    "kill $!",  # its own server
    "exit 3",  # its own session
    "echo 'raise SystemExit' >> program.py",
]
FIXES = [
    [HALF_CLAMP, "true"],
    # Misled: from the half of a fix nothing here leads any further than mean.
    [FIX_CLAMP, FIX_MEAN],
    # Therefore back to the start of all, with the whole of a fix.
    [f"{FIX_CLAMP}; {FIX_MEAN}; {FIX_MIDDLE}", FIX_MIDDLE],
]
GENERATIONS = [[*fixes, *(BROKEN if EACH else BROKEN[place :: len(FIXES)])] for place, fixes in enumerate(FIXES)]
"""Each way to break is one of a generation's candidates."""
WIDTH = len(GENERATIONS[0])


@dataclass(frozen=True)
class Search:
    """The home, and the session `main` in which all was prepared."""

    home: Home

    def exec(self, branch: str, text: str, *options: str) -> Any:
        return self.home.cli("exec", "-b", branch, *options, "--", text)

    def try_out(self, start: str, prefix: str, candidates: list[str]) -> dict[str, int]:
        """A fork of `start` for each candidate; their scores, -1 for one that broke."""
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
        """Keep the best as checkpoint `name`, throw away the others; the best score."""
        best = max(scores, key=lambda branch: scores[branch])
        self.home.must("checkpoint", name, "-b", best, "--tier", "live")
        live = {row["branch"] for row in self.home.must("ps", "--json").json()}
        self.home.must("stop", "--discard", *(branch for branch in scores if branch in live))
        return scores[best]

    def look(self, name: str, branch: str) -> str:
        """What a capture holds: fork it, and look."""
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


def test_a_search_over_generations_finds_the_fix_and_leaves_nothing_of_the_losers(search: Search) -> None:
    home = search.home
    starts = ["start", "best-1", "start"]
    seen = {"start": search.look("start", "before-0")}
    bests = []
    for number, (start, candidates) in enumerate(zip(starts, GENERATIONS, strict=True), 1):
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
