"""asking.sh, the command `waypoint` inside a session, when it cannot reach the daemon."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.shellwrap.test_run_script import SCRIPT as RUN_SCRIPT
from tests.shellwrap.test_run_script import shell as shell
from tests.waiting import PATIENCE_S

SCRIPT = RUN_SCRIPT.with_name("asking.sh")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_unreachable_daemon_is_reported_like_other_errors(
    shell: list[str], tmp_path: Path, *, as_json: bool
) -> None:
    env = {**os.environ, "WAYPOINT_RUN": str(tmp_path / 'a "folder" \\ that is nowhere'), "LC_ALL": "C.UTF-8"}
    argv = [*shell, str(SCRIPT), "ps", *(["--json"] if as_json else [])]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 125
    assert done.stderr.startswith("waypoint: cannot ask the daemon: ")
    assert "\n  next: " in done.stderr
    if not as_json:
        assert done.stdout == ""
        return
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"code", "exit", "tried", "on", "said", "next"}
    assert (error["code"], error["exit"]) == ("failure", 125)
    assert "nowhere" in error["said"]


def test_an_answer_that_was_removed_is_not_waited_for(shell: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bell")
    env = {**os.environ, "WAYPOINT_RUN": str(tmp_path)}
    with subprocess.Popen([*shell, str(SCRIPT), "ps"], env=env, stderr=subprocess.PIPE, text=True) as asking:
        with open(tmp_path / "bell") as bell:
            bell.read(1)
        (answer,) = tmp_path.glob("a.*")
        # A dying daemon leaves an empty answer, so the client opens the answer again if it is empty.
        writer = os.open(answer, os.O_WRONLY)
        answer.unlink()
        os.close(writer)
        _, said = asking.communicate(timeout=PATIENCE_S)
    assert asking.returncode == 125
    assert "the answer is lost\n  next: ask again; what it should have changed tells whether it was done" in said
