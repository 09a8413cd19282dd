"""The jobs of a home."""

from typing import Literal

from waypoint.client.following import iter_events
from waypoint.client.link import ask
from waypoint.client.parsing import field_of, parse, parse_list
from waypoint.client.results import JobRecord
from waypoint.model.errors import Failed


class JobCalls:
    """The jobs of one home's daemon. They end with their daemon: the next one knows none of them (UnknownName)."""

    def __init__(self, home: str) -> None:
        """Use Client.jobs. `home`: its real path."""
        self._home = home

    def list(self) -> "list[JobRecord]":
        """The jobs that run, and those that ended lately, without their results."""
        return parse_list(JobRecord, ask(self._home, "GET", "/v1/jobs"), "jobs")

    def start(self, kind: Literal["doctor", "gc"]) -> JobRecord:
        """Begin a job, which goes on when this program ends. Raises StateConflict if a job of this kind runs."""
        answer = ask(self._home, "POST", "/v1/jobs", {"kind": kind}, may_repeat=False)
        return parse(JobRecord, field_of(answer, "job"))

    def get(self, job: str) -> JobRecord:
        """One job, with its result. Raises UnknownName."""
        return parse(JobRecord, field_of(ask(self._home, "GET", f"/v1/jobs/{job}"), "job"))

    def cancel(self, job: str) -> JobRecord:
        """End a job before its time. It may still be `running` after ten seconds; `wait` tells of its end."""
        return parse(JobRecord, field_of(ask(self._home, "POST", f"/v1/jobs/{job}/cancel"), "job"))

    def wait(self, job: str) -> JobRecord:
        """The job when it has ended, with its result. Raises UnknownName also if its daemon dies, Failed if the daemon
        is stopped.
        """
        for event in iter_events(self._home, follow=True, after=None):
            facts = event.get("job")
            is_end = isinstance(facts, dict) and facts.get("id") == job and event.get("change") == "ended"
            # Whoever listens from now on misses no end; what is kept of earlier events need not have this one.
            if is_end or event["kind"] in ("begin", "restarted", "lost"):
                found = self.get(job)
                if found.state != "running":
                    return found
        raise Failed(
            "wait for",
            f"job {job}",
            "the daemon was stopped",
            "'GET /v1/jobs' lists what there is; start the job again",
        )
