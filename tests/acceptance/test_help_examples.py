"""The example in the help of `checkpoint` works when it is run inside a session."""

from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.model.verbs.fast import CHECKPOINT

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.mark.soak(part="load")
def test_a_script_that_checkpoints_and_restores_itself_ends(home: Home, tmp_path: Path) -> None:
    example = CHECKPOINT.epilog.removeprefix("Example: ")
    with session(home, "root", "--bind", f"{tmp_path}:/outside") as branch:
        inside(home, branch, "make() { echo ran >>/outside/ran; false; }")
        with home.background("exec", "-b", branch, "--", f"{example}; echo ended >>/outside/ended"):
            wait_until((tmp_path / "ended").exists, "the example has come to its end")
        assert (tmp_path / "ran").read_text() == "ran\n"
        assert (tmp_path / "ended").read_text() == "ended\n"
    home.must("rm", "ready")
