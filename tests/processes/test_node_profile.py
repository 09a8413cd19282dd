"""The profile of node: CRIU can dump node without io_uring, and refuses it with one."""

import os
from pathlib import Path

import pytest

from tests.processes.stages import Session, Stage, on_stage, type_line
from tests.processes_now import name_of
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.tasks import cgroups, procfs
from waypoint.processes.criu.causes import CriuFailed
from waypoint.processes.profiles import Profiles

pytestmark = [pytest.mark.privileged, pytest.mark.requires("cgroup2", "criu", "node", "overlay", "timens", "userns")]

# Reads a file through libuv's threads or ring, then prints `wasread` and waits.
PROGRAM = """node -e '
require("fs").readFile("/etc/passwd", () => { console.log("was" + "read"); setInterval(() => {}, 1e6) })
'""".replace("\n", "")


def start_node(stage: Stage, environment: dict[str, str]) -> tuple[Session, int]:
    session = stage.start()
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    type_line(session, f"{variables} {PROGRAM} </dev/null &")
    seen = bytearray()
    while b"wasread" not in seen:
        seen += os.read(session.master, 4096)
    wait_until(lambda: bool(nodes_of(session)), "node runs", PATIENCE_S)
    return session, nodes_of(session)[0]


def nodes_of(session: Session) -> list[int]:
    return [pid for pid in cgroups.members(session.cgroup) if name_of(pid) in {"node", "MainThread"}]


def rings_of(pid: int) -> list[str]:
    return [link for link in procfs.open_files(pid).values() if "io_uring" in link]


def dump(stage: Stage, session: Session, name: str) -> None:
    try:
        os.close(stage.dump(session, name))
    finally:
        cgroups.thaw(session.cgroup)


def test_node_in_a_session_uses_no_io_uring_and_can_be_dumped(tmp_path: Path) -> None:
    def work(stage: Stage) -> list[str]:
        session, node = start_node(stage, Profiles().environment())
        dump(stage, session, "without")
        return rings_of(node)

    assert on_stage(tmp_path, work) == []


@pytest.mark.requires("io_uring")
def test_node_with_an_io_uring_is_refused_with_the_reason(tmp_path: Path) -> None:
    def work(stage: Stage) -> tuple[list[str], str]:
        session, node = start_node(stage, {"UV_USE_IO_URING": "1"})
        with pytest.raises(CriuFailed) as caught:
            dump(stage, session, "with")
        return rings_of(node), caught.value.diagnosis.name

    rings, cause = on_stage(tmp_path, work)
    assert rings
    assert cause == "io-uring"
