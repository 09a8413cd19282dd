"""The choice of a home's CRIU, with given outcomes of the trial; the trial itself is in test_trial.py."""

import os
from pathlib import Path

import pytest

from waypoint.linux.calls import programs
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.facts import Capability
from waypoint.setup import criu_choice
from waypoint.setup.criu_find import TRIAL_FILE, find, find_or_install, try_once
from waypoint.setup.trials import NotMade

WORKS = [Capability(name="dump", state="ok", required_for="live")]
FAILS = [Capability(name="dump", state="missing", why="no vDSO", remedy="get another", required_for="live")]

# A program that answers the request for its version as CRIU 4.2.1 does.
ANSWERS = r"""#!/bin/sh
exec python3 -c '
import socket, sys
side = socket.socket(fileno=int(sys.argv[2]))
side.recv(100)
side.send(bytes.fromhex("080a10015206080410022001"))
' "$@"
"""


class Trials:
    """A fake of the trial: records the tried programs, and returns the given outcome."""

    def __init__(self, outcome: list[Capability]) -> None:
        self.outcome = outcome
        self.tried: list[Path] = []

    def __call__(self, program: Path) -> list[Capability]:
        self.tried.append(program)
        return self.outcome


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ANSWERS)
    path.chmod(0o755)
    return path


@pytest.fixture
def distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a criu that seems to be installed by the distribution."""
    program = make_program(tmp_path / "usr/sbin/criu")
    monkeypatch.setattr(programs, "SEARCH_PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems to have no criu."""
    monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path / "nothing"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_chosen_program_is_used_without_a_trial(home: Path, distributed: Path, tmp_path: Path) -> None:
    chosen = make_program(tmp_path / "mine")
    trials = Trials(FAILS)
    found = find(home, tries=trials, chosen=str(chosen))
    assert (found.path, found.origin, found.version) == (chosen, "chosen", "4.2.1")
    assert trials.tried == []


def test_a_missing_chosen_program_is_an_error(home: Path, distributed: Path) -> None:
    with pytest.raises(HostLacks, match="/no/such/criu"):
        find(home, tries=Trials(WORKS), chosen="/no/such/criu")


def test_the_program_of_the_distribution_is_used_if_it_works(home: Path, distributed: Path) -> None:
    found = find(home, tries=Trials(WORKS))
    assert (found.path, found.origin) == (distributed, "distribution")


def test_a_failing_program_of_the_distribution_is_refused_with_the_reason(home: Path, distributed: Path) -> None:
    with pytest.raises(HostLacks, match="no vDSO") as caught:
        find(home, tries=Trials(FAILS))
    assert str(distributed) in caught.value.said
    assert "waypoint setup" in caught.value.next_step


@pytest.mark.usefixtures("bare")
def test_without_any_criu_the_error_says_so(home: Path) -> None:
    with pytest.raises(HostLacks, match="there is no CRIU"):
        find(home, tries=Trials(WORKS))


def test_a_program_is_tried_once(home: Path, distributed: Path) -> None:
    trials = Trials(WORKS)
    for _ in range(3):
        find(home, tries=trials)
    assert trials.tried == [distributed]
    assert (home / TRIAL_FILE).exists()


def test_a_replaced_program_is_tried_again(home: Path, distributed: Path) -> None:
    trials = Trials(WORKS)
    find(home, tries=trials)
    distributed.write_text(f"{ANSWERS}# newer\n")
    find(home, tries=trials)
    assert trials.tried == [distributed, distributed]


def test_the_program_is_tried_again_on_another_kernel(
    home: Path, distributed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(WORKS)
    find(home, tries=trials)
    booted = os.uname_result(("Linux", "host", "99.0", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: booted)
    find(home, tries=trials)
    assert len(trials.tried) == 2


def test_the_outcomes_of_several_programs_are_kept(home: Path, tmp_path: Path) -> None:
    one, two = make_program(tmp_path / "one"), make_program(tmp_path / "two")
    trials = Trials(WORKS)
    for program in (one, two, one, two):
        assert try_once(home, program, trials) == WORKS
    assert trials.tried == [one, two]


def test_a_damaged_file_of_outcomes_is_ignored(home: Path, distributed: Path) -> None:
    for content in (b"", b"{", b"[]", b'[{"path": 1}]', b"\xff"):
        (home / TRIAL_FILE).write_bytes(content)
        assert find(home, tries=Trials(WORKS)).origin == "distribution"


def test_a_failed_trial_is_an_error_and_records_no_outcome(home: Path, distributed: Path) -> None:
    def fails(program: Path) -> list[Capability]:
        raise Failed("try CRIU at", str(program), "No space left on device", "make room")

    with pytest.raises(Failed, match="No space left"):
        find(home, tries=fails)
    assert not (home / TRIAL_FILE).exists()
    assert find(home, tries=Trials(WORKS)).origin == "distribution"


def test_setup_reports_a_trial_that_could_not_be_made(
    home: Path, distributed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(program: Path, _home: Path) -> list[Capability]:
        raise NotMade("try CRIU at", str(program), "No space left on device", "make room")

    monkeypatch.setattr(criu_choice, "trial", fails)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(
        HostLacks, match="the home and a CRIU are installed, but this CRIU could not be tried: No space"
    ) as told:
        criu_choice.install(home, None, lambda _: None)
    assert (told.value.exit_code, told.value.next_step) == (3, "make room")


def test_setup_uses_a_working_program_and_installs_nothing(home: Path, distributed: Path) -> None:
    said: list[str] = []
    found = find_or_install(home, said.append, tries=Trials(WORKS))
    assert found.origin == "distribution"
    assert said == []


def test_setup_refuses_a_chosen_program_that_fails_its_trial(home: Path, tmp_path: Path) -> None:
    chosen = make_program(tmp_path / "mine")
    with pytest.raises(HostLacks, match="dump: no vDSO") as caught:
        find_or_install(home, print, tries=Trials(FAILS), chosen=str(chosen))
    assert caught.value.next_step == "get another"
    assert str(chosen) in caught.value.on
