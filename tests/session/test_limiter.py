"""The cgroup files to which limits are written, with cgroup versions 1 and 2. Plain folders stand for the cgroups."""

import os
from pathlib import Path

import pytest

from waypoint.launch.ground import id_choice
from waypoint.launch.ground.id_choice import RANGE, IdChoice
from waypoint.launch.ground.limits import Limiter, fill_in, of_all
from waypoint.linux.calls import machine
from waypoint.linux.tasks import namespaces, systemd
from waypoint.model.conditions import text_of
from waypoint.model.records import HOST_IDS, SHIFTED_IDS, IdMap, SessionLimits

ALL = SessionLimits(memory=1 << 30, cpus=0.5, pids=100)
SHIFTED = IdMap(first=2_000_683_008)
WHY = "the machine has no controller for groups"


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The folder of a session's group; `old` in the same folder stands for the home's group of version 1."""
    for folder in ("home/one", "old/one"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path / "home/one"


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_limits_are_written_to_the_group_of_each_hierarchy(group: Path, tmp_path: Path) -> None:
    Limiter(frozenset({"memory", "pids", "cpu"}), {}, {}).hold(str(group), ALL)
    assert written(group) == {"memory.max": "1073741824", "pids.max": "100", "cpu.max": "50000 100000"}
    for path in group.iterdir():
        path.unlink()
    old = str(tmp_path / "old")
    Limiter(frozenset(), {"memory": old, "pids": old, "cpu": old}, {}).hold(str(group), ALL)
    assert written(group) == {}
    limits = {"memory.limit_in_bytes": "1073741824", "pids.max": "100", "cpu.cfs_quota_us": "50000"}
    assert written(tmp_path / "old/one") == limits


def test_in_version_1_only_requested_limits_are_enforced(group: Path, tmp_path: Path) -> None:
    old = str(tmp_path / "old")
    every = Limiter(frozenset(), {"memory": f"{old}/memory", "pids": f"{old}/pids"}, {"cpu": WHY})
    asked = SessionLimits(pids=100)
    usual, some = every.of_session(SessionLimits()), every.of_session(asked)
    assert (usual.legacy, some.legacy) == ({}, {"pids": f"{old}/pids"})
    assert (usual.most_of_each_user(SessionLimits()), some.most_of_each_user(asked)) == (4096, None)
    assert [one.subject for one in usual.unlimited(ALL, SHIFTED)] == ["memory", "cpus", "pids"]
    (memory,) = some.unlimited(fill_in(asked), SHIFTED)
    assert text_of(memory).startswith("memory: not enforced, because cgroups of version 1")


def test_limits_without_a_controller_are_reported(group: Path) -> None:
    limiter = Limiter(frozenset(), {}, dict.fromkeys(("memory", "pids", "cpu"), WHY))
    limiter.hold(str(group), ALL)
    assert written(group) == {}
    assert list(map(text_of, limiter.unlimited(ALL, SHIFTED))) == [
        f"memory: not enforced, {WHY}",
        f"cpus: not enforced, {WHY}",
        f"pids: enforced for each user of the session separately, {WHY}",
    ]
    assert list(map(text_of, limiter.unlimited(SessionLimits(pids=100), HOST_IDS))) == [
        f"pids: enforced for each user of the session but root separately, {WHY}"
    ]
    assert limiter.most_of_each_user(ALL) == 100


def test_limits_above_those_of_the_machine_are_reduced_or_left_out(group: Path) -> None:
    limits = SessionLimits(cpus=1e6, pids=2**40)
    Limiter(frozenset({"pids", "cpu"}), {}, {}).hold(str(group), limits)
    assert written(group) == {"pids.max": str(4 << 20)}


def test_the_owner_of_a_namespace_is_not_mapped_into_any_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "has_all_capabilities", lambda: True)
    first = 2_000_683_008
    choice = IdChoice(first, tmp_path, tmp_path)
    owners = {choice.owner_of(f"{number:032x}") for number in range(200)}
    assert len(owners) > 190
    assert min(owners) > IdMap(first=first, more=tuple(range(70_000, 70_300))).outside(70_299)
    assert max(owners) < first + RANGE
    assert min(owners) > first + SHIFTED_IDS
    assert choice.owner_of_router() == first + RANGE - 1 > max(owners)
    assert IdChoice(0, tmp_path, tmp_path).owner_of("0" * 32) == 0


def test_without_all_capabilities_root_owns_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_choice.namespaces, "has_all_capabilities", lambda: False)
    choice = IdChoice(2_000_683_008, tmp_path, tmp_path)
    assert choice.owner_of("0" * 32) == 0
    assert choice.owner_of_router() > 2_000_683_008  # neither root nor nobody of the host


def test_all_sessions_of_a_home_together_have_a_limit(group: Path, tmp_path: Path) -> None:
    """With cgroup2, the home's group has the bound. With version 1, the launcher's group has it, for processes only."""
    home = tmp_path / "home"
    limiter = Limiter(frozenset({"memory", "pids", "cpu"}), {}, {})
    limiter.hold_all(str(home))
    (home / "one").rmdir()
    assert written(home) == {"memory.max": str(of_all().memory), "pids.max": str(of_all().pids)}
    assert limiter.entered == []
    (tmp_path / "old/home").mkdir()
    old = str(tmp_path / "old/home")
    limiter = Limiter(frozenset(), {"memory": old, "pids": old, "cpu": old}, {})
    limiter.hold_all(str(home))
    assert written(Path(old)) == {"pids.max": str(of_all().pids)}
    assert limiter.entered == [old]


def test_sessions_leave_the_machine_half_of_its_processes_and_a_tenth_of_its_memory() -> None:
    bounds, pid_max = of_all(), int(Path("/proc/sys/kernel/pid_max").read_text())
    assert bounds.pids
    assert 64 <= bounds.pids <= pid_max / 2
    assert bounds.memory == int(machine.total_memory_bytes() * 0.9)


def test_a_scope_of_systemd_has_the_limit_of_all_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busctl = tmp_path / "busctl"
    busctl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/asked\n')
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    systemd.start_scope("waypoint-test.scope", 7, "Sessions", SessionLimits(memory=1 << 30, pids=100))
    words = (tmp_path / "asked").read_text().splitlines()
    assert words[words.index("StartTransientUnit") :] == [
        *("StartTransientUnit", "ssa(sv)a(sa(sv))", "waypoint-test.scope", "fail", "5"),
        *("PIDs", "au", "1", "7", "Delegate", "b", "true", "Description", "s", "Sessions"),
        *("TasksMax", "t", "100", "MemoryMax", "t", "1073741824", "0"),
    ]
