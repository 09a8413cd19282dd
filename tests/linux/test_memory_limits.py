"""The memory that a container leaves, by groups of both versions."""

import os
from pathlib import Path

import pytest

from waypoint.linux import memory_limits
from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.cgroups import Hierarchies

MIB = 1 << 20
LIVED = 7


def make_group(path: Path, names: memory_limits._Names, limit: str, used: int, cached: int) -> None:
    """`cached`: of files, which the kernel can take back; half of them were used twice."""
    path.mkdir(parents=True, exist_ok=True)
    (path / names.limit).write_text(f"{limit}\n")
    (path / names.used).write_text(f"{used}\n")
    of_files = "".join(f"{name} {cached // 2}\n" for name in names.cached)
    (path / "memory.stat").write_text(f"anon 5\n{of_files if cached else ''}other 0\n")


@pytest.mark.parametrize("version", [2, 1])
def test_the_least_limit_of_its_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    root, names = tmp_path / "memory", memory_limits._LEGACY if version == 1 else memory_limits._UNIFIED
    bare = Hierarchies(str(tmp_path / "bare"), {"memory": str(root)}) if version == 1 else Hierarchies(str(root), {})
    monkeypatch.setattr(cgroups, "find_hierarchies", lambda: bare)
    own = "/above/own"
    monkeypatch.setattr(cgroups, "own_group", lambda root, _controller="": f"{root}{own}".rstrip("/"))
    monkeypatch.setattr(machine, "total_memory_bytes", lambda: 8000 * MIB)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 4000 * MIB)
    root.mkdir()
    assert memory_limits.total_bytes() == 8000 * MIB
    unlimited = "max" if version == 2 else str(0x7FFFFFFFFFFFF000)
    make_group(root / "above/own", names, unlimited, 300 * MIB, 0)
    assert (memory_limits.total_bytes(), memory_limits.available_bytes()) == (8000 * MIB, 4000 * MIB)
    make_group(root / "above", names, str(1000 * MIB), 700 * MIB, 200 * MIB)
    assert (memory_limits.total_bytes(), memory_limits.available_bytes()) == (1000 * MIB, 500 * MIB)
    make_group(root / "above/own", names, str(900 * MIB), 100 * MIB, 0)
    assert (memory_limits.total_bytes(), memory_limits.available_bytes()) == (900 * MIB, 500 * MIB)
    make_group(root, names, str(512 * MIB), 0, 0)  # the container's own, where it sees no other
    assert memory_limits.total_bytes() == 512 * MIB
    make_group(tmp_path, names, str(MIB), 0, 0)  # of nobody here: what is above the mount
    own = "/../elsewhere"
    assert memory_limits.total_bytes() == 512 * MIB


@pytest.mark.privileged
@pytest.mark.requires("root", "cgroup2")
def test_a_limit_of_the_kernel_is_found() -> None:
    found = cgroups.find_hierarchies()
    root = found.legacy.get("memory")
    if root is None and "memory" not in cgroups.delegate(found.unified, ("memory",)):  # no group can be given a limit
        assert memory_limits.total_bytes() <= machine.total_memory_bytes()
        return
    own, names = found.unified, memory_limits._UNIFIED
    if root is not None:
        own, names = cgroups.own_group(root, "memory"), memory_limits._LEGACY
    group = f"{own}/waypoint-memory-{os.getpid()}"
    cgroups.create(group)
    try:
        cgroups.write(group, names.limit, str(300 * MIB))
        pid = os.fork()
        if pid == 0:
            cgroups.enter(group)
            is_found = memory_limits.total_bytes() == 300 * MIB and 0 < memory_limits.available_bytes() <= 300 * MIB
            os._exit(LIVED if is_found else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == LIVED
    finally:
        os.rmdir(group)
