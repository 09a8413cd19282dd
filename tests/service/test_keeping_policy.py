"""Which captures a policy keeps: as restic's forget does, of each branch by itself."""

import datetime

from hypothesis import given
from hypothesis import strategies as st

from waypoint.branch.keeping_policy import Dated, KeepPolicy, kept_by

ZONE = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
policies = st.builds(KeepPolicy, *([st.integers(0, 4)] * 5))
histories = st.lists(
    st.builds(Dated, st.uuids().map(str), st.sampled_from("ab"), st.integers(1_600_000_000, 1_700_000_000)),
    unique_by=lambda one: one.id,
    max_size=40,
)


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(f"{text}+05:30").timestamp()


def test_an_example() -> None:
    """Times as they are read off a clock there; the newest of a day is its last; days without one do not count."""
    times = {"a": "2026-01-01T00:10", "b": "2026-01-01T23:50", "c": "2026-01-02T00:05", "d": "2026-01-07T12:00"}
    times |= {"e": "2026-01-07T12:59", "f": "2026-01-07T13:00"}
    moments = [Dated(name, "main", at(when)) for name, when in times.items()]
    found = kept_by(KeepPolicy(last=1, hourly=2, daily=3, monthly=5), moments, ZONE)
    assert found == {"f": ["last", "hourly", "daily", "monthly"], "e": ["hourly"], "c": ["daily"], "b": ["daily"]}
    assert kept_by(KeepPolicy(weekly=2), moments, ZONE) == {"f": ["weekly"], "c": ["weekly"]}  # 1 and 2 are of one week
    assert kept_by(KeepPolicy(), moments, ZONE) == {}


@given(policies, histories)
def test_what_holds_of_every_policy(policy: KeepPolicy, moments: list[Dated]) -> None:
    found = kept_by(policy, moments, ZONE)
    for branch in "ab":
        history = sorted((one for one in moments if one.branch == branch), key=lambda one: (-one.created, one.id))
        mine = {one.id: found[one.id] for one in history if one.id in found}
        assert mine == kept_by(policy, history, ZONE)  # no branch has a part in another's
        for kind in KeepPolicy._fields:
            chosen = [one for one in history if kind in mine.get(one.id, ())]
            assert len(chosen) <= getattr(policy, kind)
            if history and getattr(policy, kind):
                assert chosen[0] == history[0]  # the newest is of every kind
        assert len([one for one in history if "last" in mine.get(one.id, ())]) == min(policy.last, len(history))


@given(policies, histories)
def test_a_wider_policy_keeps_all_that_a_narrower_one_does(policy: KeepPolicy, moments: list[Dated]) -> None:
    wider = KeepPolicy(*(count + 1 for count in policy))
    assert kept_by(policy, moments, ZONE).keys() <= kept_by(wider, moments, ZONE).keys()


@given(policies, histories)
def test_what_was_kept_is_kept_again(policy: KeepPolicy, moments: list[Dated]) -> None:
    """A second gc with the same policy removes nothing more."""
    found = kept_by(policy, moments, ZONE)
    assert kept_by(policy, [one for one in moments if one.id in found], ZONE).keys() == found.keys()
