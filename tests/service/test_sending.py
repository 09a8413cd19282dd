"""An export that nobody takes ends: as long as it is under way, nothing that it reads can be removed."""

import asyncio
import os
from typing import Any

import pytest

from waypoint.model.errors import Failed
from waypoint.service.durable import sending


class _Stalled:
    """A client that takes the first piece, and then no more."""

    def __init__(self) -> None:
        self.taken = b""

    async def output(self, data: bytes) -> None:
        if self.taken:
            await asyncio.Event().wait()
        self.taken += data


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "STALLED_S", 0.01)
    ours, theirs = os.pipe()
    outlet: Any = _Stalled()

    async def send() -> None:
        os.write(theirs, b"one")
        passing = asyncio.ensure_future(sending._pass_on(ours, outlet))
        while not outlet.taken:
            await asyncio.sleep(0)
        os.write(theirs, b"two")
        await passing

    with pytest.raises(Failed) as caught:
        asyncio.run(send())
    assert caught.value.next_step == "name a file for the export"
    with pytest.raises(BrokenPipeError):  # so the program that writes it ends
        os.write(theirs, b"three")
    os.close(theirs)
