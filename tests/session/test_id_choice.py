"""The map from a session's user and group ids to the host's, and the range of host ids that a home takes for it."""

import os
from pathlib import Path

import pytest

from waypoint.launch.ground import id_choice
from waypoint.launch.ground.id_choice import IdChoice
from waypoint.linux.storage import idmapped
from waypoint.model.records import HOST_IDS, NOBODY, SHIFTED_IDS, IdMap, User

FAR_ID = 1_234_567_890


def test_ids_are_mapped_to_the_host_and_back() -> None:
    ids = IdMap(first=2_000_683_008, more=(70_000, FAR_ID))
    assert [ids.outside(one) for one in (0, 33, SHIFTED_IDS - 1, 70_000, FAR_ID)] == [
        2_000_683_008 + place for place in (0, 33, SHIFTED_IDS - 1, SHIFTED_IDS, SHIFTED_IDS + 1)
    ]
    assert [ids.inside(ids.outside(one)) for one in (0, 33, 70_000, FAR_ID)] == [0, 33, 70_000, FAR_ID]
    assert [ids.inside(one) for one in (0, 33, ids.outside(FAR_ID) + 1)] == [NOBODY] * 3
    with pytest.raises(ValueError, match="not in"):
        ids.outside(70_001)
    assert (HOST_IDS.outside(7), HOST_IDS.inside(7)) == (7, 7)


@pytest.mark.privileged
@pytest.mark.requires("root")
@pytest.mark.parametrize("first_group", [70_000, 4_000_000_000])
def test_a_user_in_more_groups_than_the_kernel_maps_has_host_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_group: int
) -> None:
    monkeypatch.setattr(IdChoice, "why_not", lambda *_: "")
    choice = IdChoice(2_000_683_008, tmp_path, tmp_path)

    def chosen(count: int) -> tuple[IdMap, str]:
        groups = list(range(first_group, first_group + count))
        return choice.choose(User(name="ann", uid=1000, gid=1000, home="/", shell="/bin/sh", groups=groups), [])

    most = next(count for count in range(100, 300) if chosen(count + 1)[1])
    longest = chosen(most)[0]
    os.close(idmapped.namespace.__wrapped__(longest.lines()))
    with pytest.raises(OSError, match="Invalid argument"):
        idmapped.namespace.__wrapped__(IdMap(first=longest.first, more=(*longest.more, first_group + most)).lines())
    ids, why = chosen(most + 1)
    assert ids == HOST_IDS
    assert why.startswith(f"ann and their groups have {most + 1} ids from 65536 on")


def test_open_homes_have_different_ranges_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_choice, "RUNTIME", str(tmp_path))
    found = set()
    for number in range(3):
        first = id_choice.find_first("0" * 16)
        (tmp_path / f"home-{number}").mkdir()
        IdChoice(first, tmp_path / f"home-{number}", tmp_path)
        found.add(first)
    assert len(found) == 3
    assert all(abs(one - other) >= id_choice.RANGE for one in found for other in found - {one})
