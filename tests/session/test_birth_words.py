"""What a plan of a session says of what it does not bring back; what is left if that is broken off."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from waypoint.model.records import Tier
from waypoint.session.birth import birth as births
from waypoint.session.birth import revive, start_again
from waypoint.session.birth.birth import Birth


@pytest.mark.parametrize(
    ("most", "said"), [("live", []), ("respawn", []), ("files", ["without its programs: --tier files"])]
)
def test_only_what_is_not_wanted_is_said_to_be_left_out(most: Tier, said: list[str]) -> None:
    """Also where more is wanted than the capture has: its programs are started again then."""
    origin = SimpleNamespace(tier="respawn", layers=SimpleNamespace(programs=object()))
    assert Birth(cast("Any", None), cast("Any", origin), (24, 80), processes=False, most=most).left_out() == said


@pytest.mark.parametrize("most", ["respawn", "files"])
def test_a_tier_that_changes_nothing_is_said_to_do_so(most: Tier) -> None:
    def told(origin: object) -> list[str]:
        return Birth(cast("Any", None), cast("Any", origin), (24, 80), processes=False, most=most).left_out()

    assert told(None) == [f"--tier {most}: the branch begins anew, and there is nothing to bring back"]
    of_files = told(SimpleNamespace(tier="files"))
    assert of_files == (
        []
        if most == "files"
        else ["--tier respawn: the capture keeps only files and the shell's state, which is all there is"]
    )


def test_who_is_broken_off_while_programs_are_started_again_lets_the_session_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a live capture, too: else the daemon has its terminal open for ever."""
    done: list[str] = []

    async def made(*_: object) -> SimpleNamespace:
        return SimpleNamespace(release=lambda: done.append("released"))

    async def broken_off(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(births, "_make_tree_and_group", lambda *_: None)
    monkeypatch.setattr(revive, "revive", made)
    monkeypatch.setattr(start_again, "start_again", broken_off)
    origin = SimpleNamespace(tier="live", layers=SimpleNamespace(programs=SimpleNamespace(ended=1)))
    row = SimpleNamespace(branch="b")
    birth = Birth(cast("Any", row), cast("Any", origin), (24, 80), processes=True)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(births._make_once(cast("Any", None), birth))
    assert done == ["released"]
