"""What `--allow-net` takes, and who waits for names."""

import asyncio
import threading

import pytest

from waypoint.egress import allowed
from waypoint.model.errors import UsageProblem


@pytest.mark.parametrize("entry", ["pypi.org", "a_b.example.", "10.1.0.0/16", "fd00::/8", f"{'a' * 63}.org"])
def test_names_and_networks(entry: str) -> None:
    allowed.check([entry])


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "a b",
        "a..b",
        "10.1.0.0/33",
        "*.org",
        f"{'a' * 64}.org",
        "fe80::%eth0/64",
        "2001:db8::%a } ; flush ruleset #/64",
    ],
)
def test_nothing_else(entry: str) -> None:
    with pytest.raises(UsageProblem):
        allowed.check([entry])
    assert allowed.resolve([entry], [], {}) == []  # as a record of an earlier version may have


def test_no_more_than_256() -> None:
    allowed.check(["10.1.0.0/16"] * 256)
    with pytest.raises(UsageProblem, match="256 names and networks at most"):
        allowed.check(["10.1.0.0/16"] * 257)


def test_no_user_waits_for_the_names_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def look_up(name: str) -> list[str]:
        if name.startswith("slow"):
            answered.wait(100)  # until the end of the test
        return ["192.0.2.1"]

    async def run() -> None:
        names = allowed.Lookups()
        late = await names.look_up([f"slow{number}.test" for number in range(100)], 1000)
        assert len(late) == 100
        assert await names.look_up(["quick.test"], 0) == set()
        assert names.known == {"quick.test": ["192.0.2.1"]}
        answered.set()
        await asyncio.wait(late)
        names.close()

    monkeypatch.setattr(allowed, "_look_up", look_up)
    monkeypatch.setattr(allowed, "LOOK_UP_S", 1.0)
    asyncio.run(run())
