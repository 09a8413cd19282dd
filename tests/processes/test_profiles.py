"""Workload profiles: the existing files, and the schema."""

from pathlib import Path

import pytest

from tests.places import ROOT
from waypoint.model.errors import StoreDamaged
from waypoint.processes import profiles
from waypoint.processes.profiles import load_profiles, session_environment

GOOD = """
reason = "because"
test = "tests/x.py::test_y"
[match]
programs = ["x"]
[env]
A = "1"
"""


def test_each_profile_names_a_test_that_exists() -> None:
    for profile in load_profiles().values():
        file, _, test = profile.test.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text()


def test_sessions_get_the_environment_of_all_profiles() -> None:
    assert session_environment() == {"UV_USE_IO_URING": "0"}


def test_the_environments_of_all_profiles_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD.replace("A =", "B ="))
    (tmp_path / "README.md").write_text("not a profile")
    assert list(load_profiles(tmp_path)) == ["a", "b"]
    monkeypatch.setattr(profiles, "load_profiles", lambda: load_profiles(tmp_path))
    assert session_environment() == {"A": "1", "B": "1"}


def test_two_profiles_may_agree_but_not_contradict(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD)
    assert [one.env for one in load_profiles(tmp_path).values()] == [{"A": "1"}, {"A": "1"}]
    (tmp_path / "b.toml").write_text(GOOD.replace('"1"', '"2"'))
    with pytest.raises(StoreDamaged, match="a gives A another value"):
        load_profiles(tmp_path)


BROKEN = {
    GOOD.replace("reason", "raison"): "raison",
    GOOD.replace('"because"', '""'): "reason",
    GOOD.replace('["x"]', "[]"): "programs",
    GOOD.replace('["x"]', '"x"'): "programs",
    GOOD.replace('"1"', "1"): "env",
    GOOD.replace("A =", '"A B" ='): "env",
    GOOD.replace("[match]", "[matches]"): "match",
    GOOD.replace('test = "tests/x.py::test_y"', ""): "test",
    GOOD + "reason = [": "Invalid value",
}


def test_a_file_that_breaks_the_schema_is_refused_by_name(tmp_path: Path) -> None:
    for text, words in BROKEN.items():
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(StoreDamaged, match=words) as caught:
            load_profiles(tmp_path)
        assert caught.value.on == str(tmp_path / "bad.toml")
