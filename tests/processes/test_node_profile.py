"""The profile of node: without io_uring it can be dumped, with one it cannot."""

import os
from pathlib import Path

import pytest

from tests.processes.stages import criu_path, name_of, on_stage, type_line, wait_until
from waypoint.linux import cgroups
from waypoint.processes.criu_causes import CriuFailed
from waypoint.processes.criu_options import DumpOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.freeze import freeze_for_dump
from waypoint.processes.profiles import session_environment
from waypoint.processes.trial import Subject
from waypoint.session.trial.throwaway import Throwaway

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "criu", "node", "overlay", "timens", "userns")]

# Reads a file through libuv's threads or ring, then says so and waits.
PROGRAM = """node -e '
require("fs").readFile("/etc/passwd", () => { console.log("was" + "read"); setInterval(() => {}, 1e6) })
'""".replace("\n", "")


def start_node(stage: Throwaway, environment: dict[str, str]) -> tuple[Subject, int]:
    subject = stage.start()
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    type_line(subject, f"{variables} {PROGRAM} </dev/null &")
    seen = bytearray()
    while b"wasread" not in seen:
        seen += os.read(subject.master, 4096)
    wait_until(lambda: bool(nodes_of(subject)), "node")
    return subject, nodes_of(subject)[0]


def nodes_of(subject: Subject) -> list[int]:
    return [pid for pid in cgroups.members(subject.cgroup) if name_of(pid) in {"node", "MainThread"}]


def rings_of(pid: int) -> list[str]:
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if "io_uring" in link]


def dump(stage: Throwaway, subject: Subject, name: str) -> None:
    (stage.folder / name).mkdir()
    fd = os.open(stage.folder / name, os.O_RDONLY)
    freeze_for_dump(subject.cgroup)
    options = DumpOptions(
        tree_pid=subject.pid, images_fd=fd, work_fd=fd, freeze_cgroup=subject.cgroup, externals=subject.externals
    )
    try:
        Criu(criu_path(), stage.spawn_beside(subject)).dump(options)
    finally:
        cgroups.thaw(subject.cgroup)
        os.close(fd)


def test_node_in_a_session_uses_no_io_uring_and_can_be_dumped(tmp_path: Path) -> None:
    def work(stage: Throwaway) -> list[str]:
        subject, node = start_node(stage, session_environment())
        dump(stage, subject, "without")
        return rings_of(node)

    assert on_stage(tmp_path, work) == []


@pytest.mark.requires("io_uring")
def test_node_with_an_io_uring_is_refused_with_the_reason(tmp_path: Path) -> None:
    def work(stage: Throwaway) -> tuple[list[str], str]:
        subject, node = start_node(stage, {"UV_USE_IO_URING": "1"})
        with pytest.raises(CriuFailed) as caught:
            dump(stage, subject, "with")
        return rings_of(node), caught.value.diagnosis.name

    rings, cause = on_stage(tmp_path, work)
    assert rings
    assert cause == "io-uring"
