"""The choice of a home's CRIU, with given outcomes of the trial; the trial itself is in test_trial.py."""

import os
from pathlib import Path

import pytest

from waypoint.linux.calls import programs
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.session_facts import Capability
from waypoint.setup import criu_build, criu_choice
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's cache, empty; nothing can be built."""

    def offline(*_: object, **__: object) -> Path:
        raise HostLacks("download Debian's list of packages from", "http://mirror", "Connection refused")

    monkeypatch.setattr(criu_build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(criu_build, "build", offline)
    return tmp_path / "cache"


@pytest.fixture
def built(cache: Path) -> Path:
    """The path of a CRIU of Waypoint in the machine's cache."""
    return make_built(cache)


def make_built(cache: Path) -> Path:
    folder = cache / f"criu-{criu_build.VERSION}-{criu_build.key()}"
    program = make_program(folder / "criu")
    (folder / criu_build.TARBALL).touch()
    (folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in criu_build.sums(folder)))
    return program


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the CRIU in the installed package waypoint-criu."""
    program = make_program(tmp_path / "site-packages/waypoint_criu/criu")
    (program.parent / "KEY").write_text(f"{criu_build.key()}\n")
    monkeypatch.syspath_prepend(program.parent.parent)
    return program


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
    with pytest.raises(
        HostLacks, match="the home and a CRIU are installed, but this CRIU could not be tried: No space"
    ) as told:
        criu_choice.install(home, None, lambda _: None)
    assert (told.value.exit_code, told.value.next_step) == (3, "make room")


def test_waypoint_s_own_program_comes_first_then_that_of_the_package(
    home: Path, built: Path, packaged: Path, distributed: Path
) -> None:
    trials = Trials(WORKS)
    assert (find(home, tries=trials).path, find(home, tries=trials).origin) == (built, "cache")
    built.unlink()
    assert (find(home, tries=trials).path, find(home, tries=trials).origin) == (packaged, "wheel")
    (packaged.parent / "KEY").write_text("of another version")
    assert find(home, tries=trials).origin == "distribution"
    assert trials.tried == [built, packaged, distributed]


def test_a_program_that_fails_its_trial_is_followed_by_the_next(home: Path, built: Path, distributed: Path) -> None:
    def tries(program: Path) -> list[Capability]:
        return FAILS if program == built else WORKS

    assert find(home, tries=tries).path == distributed


def test_a_cache_that_was_damaged_or_that_others_may_change_is_not_used(cache: Path, built: Path) -> None:
    assert criu_build.built() == built
    for path in (built, built.parent, cache):
        path.chmod(0o775)
        assert criu_build.built() is None
        path.chmod(0o755)
    assert criu_build.built() == built
    with built.open("a") as file:
        file.write("#")
    assert criu_build.built() is None


@pytest.mark.privileged
def test_a_cache_of_another_user_is_not_used(cache: Path, built: Path) -> None:
    for path in (built, built.parent, cache):
        os.chown(path, 1234, 1234)
        assert criu_build.built() is None
        os.chown(path, 0, 0)
    assert criu_build.built() == built


def test_setup_says_why_it_could_not_build_and_uses_the_next(home: Path, distributed: Path) -> None:
    said: list[str] = []
    assert find_or_install(home, said.append, tries=Trials(WORKS)).origin == "distribution"
    (line,) = said
    assert line.startswith("Waypoint's own CRIU was not built: cannot download Debian's list of packages from")
    assert "Connection refused; the build needs root, apt, Debian's keyring and a Debian mirror" in line


def test_setup_builds_nothing_if_the_package_has_the_program(home: Path, packaged: Path) -> None:
    said: list[str] = []
    assert find_or_install(home, said.append, tries=Trials(WORKS)).origin == "wheel"
    assert said == []


def test_setup_reports_an_outdated_package(home: Path, packaged: Path, distributed: Path) -> None:
    (packaged.parent / "KEY").write_text("of another version")
    said: list[str] = []
    assert find_or_install(home, said.append, tries=Trials(WORKS)).origin == "distribution"
    assert said[0].startswith("the package waypoint-criu is of another version of Waypoint")


def test_setup_uses_what_it_has_built(
    home: Path, cache: Path, distributed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu_build, "build", lambda _: make_built(cache))
    said: list[str] = []
    found = find_or_install(home, said.append, tries=Trials(WORKS))
    assert (found.origin, said) == ("cache", [])


def test_setup_refuses_a_chosen_program_that_fails_its_trial(home: Path, tmp_path: Path) -> None:
    chosen = make_program(tmp_path / "mine")
    with pytest.raises(HostLacks, match="dump: no vDSO") as caught:
        find_or_install(home, print, tries=Trials(FAILS), chosen=str(chosen))
    assert caught.value.next_step == "get another"
    assert str(chosen) in caught.value.on
