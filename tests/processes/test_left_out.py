"""State that CRIU's images lack is found although threads end meanwhile, and in bounded time."""

import os
import socket
import subprocess

import pytest

from waypoint.linux.net import socket_options
from waypoint.linux.net.socket_options import Group
from waypoint.linux.tasks import settings
from waypoint.processes import left_out

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]


def test_a_thread_that_has_ended_hides_no_setting_of_the_others() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    pid, usual = os.getpid(), {**settings.own(), "timer slack": "1"}
    assert settings.differing(pid, [ended.pid, pid], usual) == {pid: {"timer slack": settings.own()["timer slack"]}}


def test_more_sockets_than_are_looked_at_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()

    def looked_at(most: int) -> tuple[int, list[str]]:
        monkeypatch.setattr(left_out, "_MOST_SOCKETS", most)
        found = left_out.find(pid, [pid])
        options = [one for one in found.settings if one.name == "IP_MULTICAST_TTL"]
        return len(options), [one.detail for one in found.lost if one.code == "setting-lost"]

    made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
    try:
        for sock in made:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 7)
        assert looked_at(1000) == (3, [])
        count, lost = looked_at(1)
        assert (count < 3, lost) == (True, ["options of sockets: the session has too many"])
    finally:
        for sock in made:
            sock.close()


def test_more_multicast_groups_than_are_compared_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pid, group = os.getpid(), Group(0, 1, "lo", b"")
    monkeypatch.setattr(socket_options, "groups", lambda _pid: [group] * 2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        assert "setting-lost" not in [one.code for one in left_out.find(pid, [pid]).lost]
        monkeypatch.setattr(left_out, "_MOST_COMPARED", 1)
        assert "setting-lost" in [one.code for one in left_out.find(pid, [pid]).lost]
