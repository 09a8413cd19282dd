"""Numbers and tables as text for people."""

import dataclasses
import json
from typing import Any

from waypoint.model import plainjson, rendering
from waypoint.model.facts import CaptureFacts
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


def test_a_table_is_wrapped_to_the_terminal_between_words() -> None:
    one = "fix-1: none to 0123456789ab, fix-2: none to 0123456789ac, fix-3: none to 0123456789ad"
    rows = [("1", one, "live"), ("2", "-", "no: fix-1 has been changed since by operation 17 (checkpoint)")]
    how: dict[str, Any] = {"wrapped": frozenset({"CHANGED", "UNDO"}), "right": frozenset({"N"})}
    headings = ("N", "CHANGED", "UNDO")
    lines = rendering.table(headings, rows, width=80, **how)
    assert 70 < max(map(len, lines)) <= 80
    assert sorted(" ".join(lines).split()) == sorted(" ".join(map(" ".join, [headings, *rows])).split())
    assert rendering.table(headings, rows, width=200, **how) == rendering.table(headings, rows)
    long = f"parser-fixed-with-lookahead{'x' * 50}: none"
    lines = rendering.table(headings, [("1", long, "-")], width=60, **how)
    assert max(map(len, lines)) <= 60
    assert lines[1].split() == ["1", "parser-fixed-with-", "-"]
    assert "".join(line.strip() for line in lines[2:]) == long.removeprefix("parser-fixed-with-")


def test_the_message_of_a_line_of_the_log_is_shortened_to_the_terminal() -> None:
    capture = of_capture(message="all tests pass " * 10)
    line = rendering.log_line(capture)
    short = rendering.log_line(capture, width=80)
    assert (len(short), short[-3:]) == (80, "...")
    assert line.startswith(short[:-3])
    assert rendering.log_line(capture, width=200) == line
    assert rendering.log_line(capture, width=10) == f"{line[: line.index('all tests') + 5]}..."
    names = ["fix-the-parser-of-dates-1", "fix-the-parser-of-times", "warm"]
    counted: dict[str, Any] = {"files": 12, "insertions": 1234, "deletions": 7}
    many = dataclasses.replace(of_capture(message="all tests pass"), names=names, changes=counted)
    assert len(rendering.log_line(many)) > 120
    short = rendering.log_line(many, width=80)
    assert len(short) <= 80
    assert f"({names[0]}, 2 more)" in short
    assert short.endswith("all t...")


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


def test_the_time_left_is_a_column_if_a_session_is_parked_by_time() -> None:
    plain = SessionFacts(branch="a", state="live", created="")
    parked = dataclasses.replace(plain, branch="b", parks_in_s=598.0, ends_in_s=28_799.0)
    assert "TIME LEFT" not in rendering.sessions_table([plain])[0]
    heading, _, line = rendering.sessions_table([plain, parked])
    assert line.index("9m58s idle, 7h59m in all") == heading.index("TIME LEFT")
    assert json.loads(plainjson.encode(plain)).items() >= {"parks_in_s": None, "ends_in_s": None}.items()


def test_a_disk_and_a_limit_are_reported_from_four_fifths_on() -> None:
    status = StatusFacts(pid=1, version="", home="/h", sessions=0, started="", disk_bytes=1000, free_bytes=201)
    live = SessionFacts(branch="b", state="live", created="", upper_bytes=79, limits=of_limits(disk=100))
    assert full_lines(status, [live]) == []
    full = dataclasses.replace(status, free_bytes=200)
    lines = full_lines(full, [dataclasses.replace(live, upper_bytes=80)])
    assert [line.partition(" has ")[0].partition(":")[0] for line in lines] == ["the disk of /h, to 80%", "b"]


def of_capture(message: str) -> CaptureFacts:
    texts = {"created": "2026-01-01T00:00:00+00:00", "message": message, "tier": "live", "capture": "0123456789abcdef"}
    facts: dict[str, Any] = {field.name: "" for field in dataclasses.fields(CaptureFacts) if field.name not in texts}
    return CaptureFacts(**{**facts, **texts, "names": ["ready"], "proof": None, "changes": None})


def of_limits(disk: int) -> LimitFacts:
    return {"memory_bytes": None, "cpus": None, "pids": None, "disk_bytes": disk}
