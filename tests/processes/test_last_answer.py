"""The last packet of a program in CRIU's place, which has ended by the time that it is read."""

import os
import select
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.places import ROOT
from waypoint.processes.criu import worker
from waypoint.processes.criu.messages import RequestType
from waypoint.processes.criu.worker import spawn_here

# Answers without taking the request from its socket, as whoever has only looked at it, and ends.
ANSWERS = """#!{python} -IS
import os, socket, sys
sys.path.insert(0, {root!r})
from waypoint.processes.criu.messages import RESPONSE, RequestType, encode
side = socket.socket(fileno=os.dup(int(sys.argv[2])))
side.recv(1 << 20, socket.MSG_PEEK)
side.send(encode(RESPONSE, {{"type": RequestType.VERSION, "success": True}}))
"""


class LatePoll:
    """As where the program answers and ends after the kernel has looked at the socket, and before it looks whether the
    program has ended.
    """

    def __init__(self) -> None:
        self._real = select.poll()
        self._looked = False
        self.register, self.unregister = self._real.register, self._real.unregister

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        found = self._real.poll(timeout)
        skipped, self._looked = (0 if self._looked else 1), True
        return found[skipped:]


def test_an_answer_is_read_though_the_program_has_ended_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "criu"
    program.write_text(ANSWERS.format(python=os.path.realpath(sys.executable), root=str(ROOT)))
    program.chmod(0o755)
    for poll in (select.poll, LatePoll):
        monkeypatch.setattr(worker, "select", SimpleNamespace(poll=poll, POLLIN=select.POLLIN))
        with worker.Worker(str(program), spawn_here, {}) as asked:
            asked.send({"type": RequestType.VERSION})
            ended = os.pidfd_open(asked.pid)
            select.select([ended], [], [])
            os.close(ended)
            assert asked.receive().get("success") is True, poll
            assert asked.receive() == {}, "no more"
