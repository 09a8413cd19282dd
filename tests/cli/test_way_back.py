"""From a prepared session to the machine's files: fork, keep the best, diff, apply, undo."""

import subprocess
from pathlib import Path

import pytest

from tests.homes import Home
from tests.upper.overlays import picture

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "git")]

FIX = "cd {}; sed -i 's/^{{i}}$/fixed/' text; [ {{i}} != 4 ]"
SCORE = "cd {}; case $WAYPOINT_BRANCH in *-2) echo passed 0.9;; *) echo passed 0.5;; esac"


@pytest.fixture
def repository(project: Path) -> Path:
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=T", "-c", "user.email=t@x", "commit", "-qm", "base"),
    ):
        subprocess.run(["git", "-C", project, *words], check=True)
    return project


def test_the_best_of_four_forks_reaches_the_machine(home: Home, repository: Path, branch: str) -> None:
    home.must("checkpoint", "warm", "-b", branch)
    before = picture(repository, with_times=True)
    fix, score = FIX.format(repository), SCORE.format(repository)
    done = home.must("fork", "warm", "-n", "4", "--prefix", "try", "--keep", "best", "--score", score, "--", fix)
    assert done.stdout.splitlines()[-1] == "best  try-2  score 0.9"
    live = {one["branch"] for one in home.must("ps", "--json").json()}
    assert {one for one in live if one.startswith("try-")} == {"try-2"}
    assert home.must("diff", "best", "--name-only", "--", str(repository)).stdout == f"{repository}/text\n"
    home.must("apply", "best", "--dry-run", "--", str(repository))
    assert picture(repository, with_times=True) == before
    home.must("apply", "best", "--", str(repository))
    shown = subprocess.run(["git", "-C", repository, "diff"], check=True, capture_output=True, text=True).stdout
    assert "\n-2\n+fixed\n" in shown
    home.must("undo")
    assert picture(repository, with_times=True) == before
    home.must("stop", "try-2", "--discard")


def test_without_a_score_all_sessions_continue(home: Home, project: Path, branch: str) -> None:
    home.must("checkpoint", "plain", "-b", branch)
    words = ("fork", "plain", "-n", "2", "--prefix", "none", "--keep", "never", "--score", "echo no number")
    done = home.cli(*words, "--", "true")
    assert (done.code, "no session has a score" in done.stderr) == (1, True), done.stderr
    assert home.cli("show", "never").code == 2
    home.must("stop", "none-1", "none-2", "--discard")
    done = home.cli("fork", "plain", "-n", "2", "--keep", "plain", "--score", "echo 1", "--", "true")
    assert (done.code, "for --keep" in done.stderr) == (4, True), done.stderr
    done = home.cli("fork", "plain", "-n", "2", "--keep", "best", "--", "true")
    assert (done.code, "work only together" in done.stderr) == (2, True), done.stderr
