"""What is told of the processes of a capture, each with its tier: written when the capture is taken, while the session
runs, and read by whoever shows the capture. It is no layer: nothing is brought back from it.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from waypoint.capture.layers.files import damaged
from waypoint.capture.layers.layer import Area, Taking
from waypoint.linux.storage import files
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.records import Capture
from waypoint.processes.survey import survey_by_pid, surveyed

MOST_SEEN = 512
"""Processes of a capture that are told of."""

_MOST_BYTES = 8 << 20  # a capture that was imported may have anything in its place


def write(taking: Taking, processes: Iterable[SurveyedProcess]) -> None:
    """Raises OSError."""
    rows = sorted(processes, key=lambda one: one.pid)[:MOST_SEEN]
    taking.area.hot.seen(taking.capture_id).write_bytes(msgspec.json.encode(rows))


def of_live(taking: Taking, arguments: Mapping[int, Sequence[str]]) -> list[SurveyedProcess]:
    """Of processes that are kept as they are. `arguments`: of each, by the pid that the host sees. Takes about 0.1 ms a
    process.
    """
    found = []
    for pid, words in list(arguments.items())[:MOST_SEEN]:
        with contextlib.suppress(ProcessLookupError):
            found.append(surveyed(pid, words, taking.profiles))
    return found


def of_left_out(taking: Taking) -> list[SurveyedProcess]:
    """Of processes that are not kept as they are, in a capture that keeps the others."""
    why = {pid: said for one in taking.left_out for pid, said in one.why.items()}
    found = survey_by_pid(taking.subject.facts.init_pid, why, taking.profiles)
    return [dataclasses.replace(one, tier="respawn", why=why[pid]) for pid, one in found.items()]


def read(area: Area, origin: Capture) -> list[SurveyedProcess]:
    """Sorted by pid; empty if the capture has none, or an earlier version has taken it. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(files.read_small(area.hot.seen(origin.id), _MOST_BYTES), type=list[SurveyedProcess])
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise damaged(origin, f"what was noted of its processes: {error}") from error
