"""Starting the program that moves attached layers (attach_program.py)."""

import os
import subprocess
import sys

import msgspec

import waypoint
from waypoint.capture import steps
from waypoint.capture.attaching.attach_orders import AttachOrder, PutBack
from waypoint.linux.storage.files import write_all
from waypoint.model.errors import from_json, program_ended

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "capture/attaching/attach_program.py")

MovingProgram = subprocess.Popen[bytes]


def start(order: AttachOrder, stdin: int = subprocess.DEVNULL, pass_fds: tuple[int, ...] = ()) -> MovingProgram:
    """Start it, for the caller to take its answer. `pass_fds`: descriptors that the order names. Blocks for a moment;
    raises OSError.
    """
    fd = os.memfd_create("order")  # arguments may be read by every user, and are not long
    try:
        write_all(fd, msgspec.json.encode(order))
        os.lseek(fd, 0, os.SEEK_SET)
        words = [sys.executable, "-I", "-S", _PROGRAM, str(fd), steps.armed()]
        return subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, cwd="/", pass_fds=(*pass_fds, fd))
    finally:
        os.close(fd)


def answer_of(program: MovingProgram) -> dict[str, object]:
    """Its answer: an object with `result` or `error`. Blocks until it has ended."""
    assert program.stdout is not None
    with program:
        line = program.stdout.readline()
    if not line:
        return {"error": program_ended("move", "an attached layer", program.returncode).to_json()}
    answer: dict[str, object] = msgspec.json.decode(line)
    return answer


def put_back(order: PutBack) -> None:
    """Have a layer written. Blocks until that is done. Raises WaypointError, OSError."""
    answer = answer_of(start(order, pass_fds=(order.root_fd,)))
    if isinstance(error := answer.get("error"), dict):
        raise from_json(error)
