"""Names of branches and checkpoints."""

import pytest

from waypoint.model.errors import BY_CODE, StateConflict, UsageProblem, from_json
from waypoint.model.names import MAX_NAME_BYTES, excludes, parse_name


@pytest.mark.parametrize(
    "name", ["a", "main", "0", "a/b", "v1.2_x-y", "a/b/c", "x" * MAX_NAME_BYTES, "a.lock.b", "A.b", "b.lockx", "c..d"]
)
def test_a_legal_name_is_accepted(name: str) -> None:
    assert parse_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        ".a",
        "-a",
        "_a",
        "a b",
        "a\nb",
        "a\n",
        "a\0b",
        "a\x1b[31m",
        "a;b",
        "*",
        "a\\b",
        "a@b",
        "a/../b",
        "a/-b",
        "ä",
        "a.lock",
        "a.lock/b",
        "a/.b",
        "..",
        "a:b",
        "x" * (MAX_NAME_BYTES + 1),
        "\udcff",
    ],
)
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_name(name)
    assert caught.value.said
    assert caught.value.next_step
    assert caught.value.exit_code == 2


def test_a_name_conflicts_with_names_below_it_only() -> None:
    assert excludes("a", "a/b")
    assert excludes("a/b", "a")
    assert not excludes("a", "ab")
    assert not excludes("a/b", "a/c")
    assert not excludes("a", "a")


def test_an_error_is_unchanged_by_conversion_to_json_and_back() -> None:
    error = StateConflict("start", "branch x", "it is live", "attach to it")
    back = from_json(error.to_json())
    assert type(back) is StateConflict
    assert (back.tried, back.on, back.said, back.next_step) == ("start", "branch x", "it is live", "attach to it")
    assert str(error) == "cannot start branch x: it is live\n  next: attach to it"


def test_exit_codes_are_those_of_the_contract() -> None:
    codes = {code: kind.exit_code for code, kind in BY_CODE.items()}
    assert codes == {
        "usage": 2,
        "unknown-name": 2,
        "host-lacks": 3,
        "not-allowed": 3,
        "conflict": 4,
        "cannot-capture": 5,
        "conflicts": 6,
        "store-damaged": 10,
        "failure": 125,
    }
