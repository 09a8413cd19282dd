"""The id maps of sessions."""

import itertools

import pytest

from waypoint.model.records import SHIFTED_IDS, IdMap

FIRST = 2_000_683_008
FAR = 1_234_567_890
IDS = IdMap(first=FIRST, more=(FAR, 3_000_000_000))


def parsed(lines: str) -> list[tuple[int, int, int]]:
    return [tuple(map(int, line.split())) for line in lines.splitlines()]  # type: ignore[misc]


def outside(lines: str, number: int) -> int | None:
    """Return the host's id for the id `number` of the session, by the lines of an id map; None if it has none."""
    found = [there + number - here for here, there, size in parsed(lines) if here <= number < here + size]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize("own", [[0], [1000], [1000, 27, 4, 1001], [65_535], [FAR], [3_000_000_000], [], [70_000]])
def test_only_the_users_own_ids_are_mapped_to_themselves(own: list[int]) -> None:
    lines = IDS.lines_with_only(own)
    session = {FIRST + number for number in range(0, SHIFTED_IDS, 997)} | {IDS.outside(one) for one in IDS.more}
    for number in (0, 1, 4, 27, 999, 1000, 1001, 65_534, 65_535, 65_536, 70_000, FAR, FIRST - 1):
        there = outside(lines, number)
        if number in own and (number < SHIFTED_IDS or number in IDS.more):
            assert there == IDS.outside(number)
        else:
            assert there == number  # unchanged: an id of the host that does not exist in the session
            assert there not in session
    assert outside(lines, FIRST) is None  # the session cannot create files with its ids of the host


def test_the_lines_of_an_id_map_do_not_overlap_and_the_kernel_accepts_them() -> None:
    lines = IDS.lines_with_only(range(1, 1000, 2))
    for side in (0, 1):
        ranges = sorted((line[side], line[side] + line[2]) for line in parsed(lines))
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert len(lines) < 4096  # user_namespaces(7): less than a page
    assert len(lines.splitlines()) <= 340
