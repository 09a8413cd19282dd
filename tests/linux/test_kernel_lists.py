"""What the kernel tells of processes has names in it that they choose, in which it escapes line feeds at most."""

import ctypes
import mmap
import os
import signal
import socket
from pathlib import Path

import pytest

from waypoint.linux.net import sockets
from waypoint.linux.tasks import mappings, procfs

_PR_SET_NAME = 15  # prctl(2)


def test_a_process_s_name_tells_nothing_of_its_ids() -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"\rNSpid:\t1 7")
        os.write(tell, b".")
        signal.pause()
    try:
        os.read(told, 1)
        assert (procfs.inner_pid(child), procfs.session_pid(child)) == (child, child)
        assert not procfs.is_further_in(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_name_of_a_mapped_file_is_no_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a\r7f0000000000-7fff00000000 r-xp 00000000 00:00 0 [vdso]"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        names = [mapping.path for mapping in mappings.read_mappings(os.getpid())]
    assert (names.count(str(path)), names.count("[vdso]")) == (1, 1)


@pytest.mark.privileged
def test_the_name_of_a_unix_socket_is_no_other_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a\n0: 0 0 0 0001 01 7 ").mkdir()
    name = "a\n0: 0 0 0 0001 01 7 /x\r"
    with socket.socket(socket.AF_UNIX) as bound, socket.socket(socket.AF_UNIX) as other:
        bound.bind(name)
        bound.listen()
        other.bind("\0waypoint-test-of-names")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)  # the connection has the name, too
            with sockets.open_own_table() as table:
                found = sockets.bound_names(table)
        inode = os.fstat(bound.fileno()).st_ino
    assert {key: path for key, path in found.items() if "\n" in path or "waypoint-test" in path} == {inode: name}
    assert 7 not in found
