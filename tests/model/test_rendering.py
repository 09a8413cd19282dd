"""Numbers and tables as text for people."""

import dataclasses

from waypoint.model import rendering
from waypoint.model.rendering import full_lines
from waypoint.model.session_facts import LimitFacts, SessionFacts, StatusFacts


def test_sizes_are_shown_in_the_largest_unit() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1048575: "1.0 MiB", 123 << 20: "123 MiB"}
    sizes |= {5 << 40: "5.0 TiB", 5000 << 40: "5000 TiB"}
    assert {count: rendering.size(count) for count in sizes} == sizes
    assert rendering.size(None) == "-"


def test_durations_are_shown_in_two_units() -> None:
    durations = {0.4: "0s", 59.9: "59s", 60: "1m00s", 3599: "59m59s", 7500: "2h05m", 1_040_000: "12d00h"}
    assert {seconds: rendering.duration(seconds) for seconds in durations} == durations
    assert rendering.duration(None) == "-"


def test_a_table_has_straight_columns() -> None:
    rows = [("a", "1", "live"), ("longer", "12345", "ok")]
    lines = rendering.table(("NAME", "N", "STATE"), rows, right=frozenset({"N"}))
    assert lines == ["NAME        N  STATE", "a           1  live", "longer  12345  ok"]


def test_lists_in_the_facts_of_a_layer_are_words() -> None:
    layers: dict[str, dict[str, object]] = {
        "none": {"size_bytes": 10, "programs": ["vi a"], "lost": [], "digest": None},
        "two": {"size_bytes": None, "programs": [], "lost": ["vi a: no\nsuch file", "b: gone"]},
        "by_name": {"ids": "host", "ports": {"tcp": 80}},
        "attached": {"source": "/m", "files": 1, "attached": True},
        "shell": {"moment": "prompt"},
    }
    assert {name: rendering.layer(facts) for name, facts in layers.items()} == {
        "none": "10 B, vi a",
        "two": "lost vi a: no; b: gone",
        "by_name": "user ids host, ports tcp 80",
        "attached": "copy of /m, files 1",
        "shell": "as at the last prompt",
    }


def test_a_disk_and_a_limit_are_reported_from_four_fifths_on() -> None:
    status = StatusFacts(pid=1, version="", home="/h", sessions=0, started="", disk_bytes=1000, free_bytes=201)
    live = SessionFacts(branch="b", state="live", created="", upper_bytes=79, limits=of_limits(disk=100))
    assert full_lines(status, [live]) == []
    full = dataclasses.replace(status, free_bytes=200)
    lines = full_lines(full, [dataclasses.replace(live, upper_bytes=80)])
    assert [line.partition(" has ")[0].partition(":")[0] for line in lines] == ["the disk of /h, to 80%", "b"]


def of_limits(disk: int) -> LimitFacts:
    return {"memory_bytes": None, "cpus": None, "pids": None, "disk_bytes": disk}
