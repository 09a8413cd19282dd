"""Workload profiles: the existing files, the schema, the files of a home, and remedies."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.waiting import wait_until
from waypoint.linux.tasks import procfs
from waypoint.model.errors import StoreDamaged
from waypoint.model.profile_facts import ProfileFacts
from waypoint.processes.profiles import BUILT_IN, Profiles

OWN = Profiles().all()
GOOD = """
reason = "because"
[match]
programs = ["x"]
[env]
A = "1"
"""


def written(home: Path, **texts: str) -> Profiles:
    """A home with these files in its folder of profiles, by name."""
    (home / "profiles").mkdir(exist_ok=True)
    for name, text in texts.items():
        (home / f"profiles/{name}.toml").write_text(text)
    return Profiles(home)


def of_home(profiles: Profiles) -> list[ProfileFacts]:
    return [one for one in profiles.all() if one.where != BUILT_IN]


def test_each_built_in_profile_has_a_test_and_each_setting_names_the_test_that_shows_it() -> None:
    assert [one.name for one in OWN if one.test is None or one.where != BUILT_IN or one.problem] == []
    assert [one.name for one in OWN if bool(one.env or one.remedies) != bool(one.shown_by)] == []
    for one in OWN:
        file, _, test = one.shown_by.partition("::")
        assert not file or f"def {test}(" in (ROOT / file).read_text()


def test_no_program_has_two_built_in_profiles() -> None:
    programs = [program for one in OWN for program in one.programs]
    assert sorted(programs) == sorted(set(programs))


def test_sessions_get_the_environment_of_all_profiles(tmp_path: Path) -> None:
    assert Profiles().environment() == {"UV_USE_IO_URING": "0"}
    profiles = written(tmp_path, a=GOOD, b=GOOD.replace("A =", "B ="), same=GOOD)
    assert profiles.environment() == {"UV_USE_IO_URING": "0", "A": "1", "B": "1"}


def test_a_file_of_the_home_replaces_a_built_in_profile_and_is_read_again_after_a_change(tmp_path: Path) -> None:
    profiles = written(tmp_path)
    assert profiles.environment() == {"UV_USE_IO_URING": "0"}
    written(tmp_path, node=GOOD)
    assert profiles.environment() == {"A": "1"}
    (tmp_path / "profiles/node.toml").unlink()
    assert profiles.environment() == {"UV_USE_IO_URING": "0"}


def test_a_profile_that_contradicts_another_is_not_used(tmp_path: Path) -> None:
    profiles = written(tmp_path, a=GOOD, b=GOOD.replace('"1"', '"2"'), c=GOOD.replace("A =", "UV_USE_IO_URING ="))
    assert profiles.environment() == {"UV_USE_IO_URING": "0", "A": "1"}
    assert {one.name: one.problem for one in of_home(profiles)} == {
        "a": "",
        "b": "env.A: the profile a gives it another value",
        "c": "env.UV_USE_IO_URING: the profile node gives it another value",
    }


BROKEN = {
    GOOD.replace("reason", "raison"): "raison: there is no such key; known keys: env, match, reason, remedies",
    GOOD.replace('"because"', '""'): "reason",
    GOOD.replace('["x"]', "[]"): "programs",
    GOOD.replace('["x"]', '"x"'): "programs",
    GOOD.replace("programs", "program"): "match.program: there is no such key; known keys: programs",
    GOOD.replace('"1"', "1"): "env",
    GOOD.replace("A =", '"A B" ='): "env",
    GOOD.replace("A =", "PATH ="): "env.PATH: Waypoint sets this variable itself",
    GOOD.replace("[match]", "[matches]"): "matches: there is no such key",
    GOOD + "[remedies]\nnonsense = 'x'": "remedies.nonsense: no capture is refused with this code",
    GOOD + "[test]\nstrat = 'x'": "test.strat: there is no such key; known keys: again, because",
    GOOD + "[test]\ntier = 'files'": "test.tier",
    GOOD + "reason = [": "Invalid value",
    "#" * 70_000: "it is larger than 64 KiB",
}


def test_a_file_that_breaks_the_schema_is_not_used_and_the_error_names_the_key(tmp_path: Path) -> None:
    for text, words in BROKEN.items():
        profiles = written(tmp_path, bad=text, good=GOOD)
        assert profiles.environment()["A"] == "1"
        (bad,) = [one for one in of_home(profiles) if one.problem]
        assert words in bad.problem, bad.problem
        assert (bad.name, bad.where) == ("bad", str(tmp_path / "profiles/bad.toml"))


def test_a_file_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    profiles = written(tmp_path, a=GOOD)
    file, folder = tmp_path / "profiles/a.toml", tmp_path / "profiles"
    for path, mode in ((file, 0o666), (folder, 0o775)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert [one.problem[:8] for one in of_home(profiles)] == ["the file" if path == file else "the fold"]
        path.chmod(before)
        assert [one.problem for one in of_home(profiles)] == [""]
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert [one.problem for one in of_home(profiles)] == [os.strerror(40)]  # ELOOP


def test_a_damaged_built_in_profile_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[match")
    with pytest.raises(StoreDamaged) as caught:
        Profiles(built_in=tmp_path).all()
    assert caught.value.on == str(tmp_path / "bad.toml")


REMEDIES = [(one, code) for one in OWN for code in one.remedies]


@pytest.mark.parametrize("name", sorted({one.programs[0] for one, _ in REMEDIES}))
def test_the_remedies_of_a_program_are_those_of_its_profile(name: str) -> None:
    (one,) = [one for one in OWN if name in one.programs]
    with subprocess.Popen([name, "1000"], executable="/bin/sleep") as process:
        wait_until(lambda: procfs.command_line(process.pid)[:1] == [name], "it has its arguments")
        found = {code: Profiles().remedy(process.pid, code) for code in one.remedies}
        other = Profiles().remedy(process.pid, "criu-packet-pipe"), Profiles().remedy(os.getpid(), "criu-dev-tty")
        process.kill()
    assert found == one.remedies
    assert other == ("", "")
