"""A CRIU that is started before the mounts of the session that it restores are known."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.processes.stages import criu_path
from tests.waiting import wait_until
from waypoint.launch.criu_process import CriuSpawner
from waypoint.launch.launcher_link import Launcher, LauncherDied
from waypoint.launch.spec import Identity, Overlay, StartSpec
from waypoint.linux.tasks import cgroups
from waypoint.model.ids import new_id
from waypoint.processes.criu.rpc import RESTORE_ENVIRONMENT
from waypoint.processes.criu.worker import CriuCommand, Process

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "criu", "overlay")]


@contextlib.asynccontextmanager
async def beginning(folder: Path) -> AsyncIterator[tuple[CriuSpawner, str]]:
    """Begin a CRIU in a new cgroup. Yields the spawner and the cgroup, in which the launcher's task and CRIU run."""
    group = f"{cgroups.find_hierarchies().unified}/waypoint/ahead-{os.getpid()}-{new_id()}"
    cgroups.create(group)
    launcher = Launcher()
    launcher.open()
    try:
        (folder / "run/apart").mkdir(parents=True)
        spawner = CriuSpawner(launcher, str(folder / "run"), group)
        spawner.begin(group, str(criu_path()))
        await asyncio.to_thread(wait_until, lambda: len(cgroups.members(group)) == 2, "CRIU is started")
        yield spawner, group
        await asyncio.to_thread(wait_until, lambda: not cgroups.members(group), "CRIU and the task have ended")
    finally:
        launcher.close()
        cgroups.end(group)


def ordered(spawner: CriuSpawner, group: str, folder: Path) -> Callable[[], Process]:
    """Return a function that orders the mounts of a session whose only layer is `folder`, as a restore does."""
    overlay = Overlay(target="/", lowers=[str(folder)], upper=str(folder / "upper"), work=str(folder / "work"))
    spec = StartSpec(
        cgroup=group,
        merged="",
        overlays=[overlay],
        binds=[],
        memory=[],
        proc_readonly=[],
        masked=[],
        net="none",
        identity=Identity(uid=0, gid=0, groups=[]),
        argv=[],
        env={},
        cwd=[],
        rows=24,
        cols=80,
    )
    command = CriuCommand(str(criu_path()), RESTORE_ENVIRONMENT, -1, -1)
    return lambda: spawner.into(spec, {})(command)


def test_a_criu_that_is_not_used_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with beginning(tmp_path) as (spawner, group):
            spawner.forget(group)

    asyncio.run(work())


def test_it_ends_with_the_daemon(tmp_path: Path) -> None:
    async def work() -> None:
        async with beginning(tmp_path) as (spawner, group):
            begun = spawner._begun.pop(group)
            for sock in (begun._orders, begun._channel.socket):
                sock.close()  # as the kernel does for a killed daemon
        begun.close()

    asyncio.run(work())


def test_mounts_that_cannot_be_made_are_reported(tmp_path: Path) -> None:
    async def work() -> None:
        async with beginning(tmp_path) as (spawner, group):
            with pytest.raises(FileNotFoundError) as refused:
                await asyncio.to_thread(ordered(spawner, group, tmp_path / "lacking"))
            assert refused.value.filename == str(tmp_path / "lacking")

    asyncio.run(work())


def test_a_killed_task_counts_as_a_dead_launcher(tmp_path: Path) -> None:
    async def work() -> None:
        async with beginning(tmp_path) as (spawner, group):
            for pid in cgroups.members(group):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(LauncherDied):
                await asyncio.to_thread(ordered(spawner, group, tmp_path))

    asyncio.run(work())
