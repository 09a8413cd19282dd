"""Examples of the help that go on in a copy of their session, where they are followed."""

from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.model.verbs.fast import CHECKPOINT

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


def test_a_checkpoint_and_a_restore_within_one_script_end(home: Home, tmp_path: Path) -> None:
    example = CHECKPOINT.epilog.removeprefix("Example: ")
    with session(home, "root", "--bind", f"{tmp_path}:/outside") as branch:
        inside(home, branch, "make() { echo ran >>/outside/ran; false; }")
        with home.background("exec", "-b", branch, "--", f"{example}; echo ended >>/outside/ended"):
            said = tmp_path / "ended"
            wait_until(lambda: said.exists() and said.read_text() == "ended\n", "the example has ended", PATIENCE_S)
        assert (tmp_path / "ran").read_text() == "ran\n"
    home.must("rm", "ready")
