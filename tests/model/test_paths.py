"""Where the client of a home without root looks for the daemon's socket."""

import os
from pathlib import Path

import pytest

from waypoint.model.paths import RUNTIME, RUNTIME_LINK, home_id, runtime_folder


@pytest.mark.privileged
@pytest.mark.requires("root")
def test_a_runtime_folder_that_another_user_has_made_is_not_used(tmp_path: Path) -> None:
    home, above = tmp_path / "home", tmp_path / "above"
    home.mkdir()
    own = above / home_id(str(home))
    (home / RUNTIME_LINK).symlink_to(own)
    assert runtime_folder(str(home)) == str(own), "the first start makes it"
    own.mkdir(parents=True)
    assert runtime_folder(str(home)) == str(own)
    for folder in (own, above):
        os.chown(folder, 65534, 65534)
        assert runtime_folder(str(home)) == f"{RUNTIME}/{home_id(str(home))}"
        os.chown(folder, os.geteuid(), -1)
    assert runtime_folder(str(home)) == str(own)
