"""Patches of single files."""

import functools
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.upper.comparing.overlays import Layered
from waypoint.linux.storage.access import as_user
from waypoint.upper.comparing import patching
from waypoint.upper.comparing.differing import changes
from waypoint.upper.comparing.patching import NoPatch, patch_of, unified

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=12).flatmap(
    lambda lines: st.sampled_from([lines, [*lines, "end"]])
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=LINES, new=LINES, most=st.sampled_from([0, 4_000_000]))
def test_a_patch_makes_the_one_of_the_other(tmp_path: Path, old: list[str], new: list[str], most: int) -> None:
    pairs = patching._MOST_PAIRS
    try:
        patching._MOST_PAIRS = most  # with 0 no lines are looked for that both have
        hunks = list(unified(old, new))
    finally:
        patching._MOST_PAIRS = pairs
    assert (hunks == []) == (old == new)
    if hunks:
        file = tmp_path / "file"
        file.write_text("".join(old))
        patch = "\n".join(["--- a/file", "+++ b/file", *hunks, ""])
        subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
        assert file.read_text() == "".join(new)


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_what_whoever_asks_may_not_read_is_not_shown(ground: Layered) -> None:
    for name, mode in (("secret", 0o600), ("open", 0o644)):
        (ground.base / name).write_text("the machine's\n")
        (ground.base / name).chmod(mode)
    with ground.mounted("now") as root:
        (root / "secret").unlink()
        (root / "open").write_text("the session's\n")
    looking = functools.partial(as_user, 4321, 4321, [])
    with ground.stack("now") as stack:
        found = {os.fsdecode(change.path): change for change in changes(stack, (), looking)}
        assert patch_of(found["/open"], looking).endswith("-the machine's\n+the session's\n")
        with pytest.raises(NoPatch, match="Permission denied"):
            patch_of(found["/secret"], looking)
