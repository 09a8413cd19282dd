"""Moving captures from memory to the disk."""

import asyncio
from pathlib import Path
from typing import Any

from tests.service.test_removal import chain
from waypoint.capture.captures import Captures
from waypoint.model.records import Capture
from waypoint.records.names import Names
from waypoint.service.moving import Moving


def test_an_unexpected_error_keeps_no_other_capture_in_memory(names: Names, tmp_path: Path) -> None:
    bad, good = chain(names, 2)
    nothing: Any = None
    captures, waiting = Captures(tmp_path, nothing, names, nothing, nothing), [bad, good]

    def move(capture: Capture) -> bool:
        if capture is bad:
            raise ValueError("a bug")
        waiting.remove(capture)
        return True

    captures.in_memory = lambda: list(waiting)
    captures.move_to_disk = move

    async def flush() -> Moving:
        moving = Moving(captures, nothing)
        await moving.flush()
        return moving

    problem = asyncio.run(flush()).problem
    assert waiting == [bad]
    assert problem is not None
    assert "a bug" in problem.said
