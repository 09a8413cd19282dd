"""Looking at the processes of a session that runs, before anybody captures it: which of them CRIU would refuse.

Only what is seen at a glance is looked at (proc(5)), so that a survey of hundreds of processes is cheap: who is traced,
who is in a namespace that CRIU does not dump, and what is open. A capture may still find more, as a connection that is
just being made; what it then cannot keep it says.
"""

import contextlib
import os
from collections.abc import Collection, Sequence

from waypoint.linux.tasks import namespaces, procfs
from waypoint.linux.tasks.states import task_state
from waypoint.model.details.process_facts import SurveyedProcess
from waypoint.model.errors import as_text
from waypoint.model.late_pattern import late_pattern
from waypoint.processes.criu.cause_table import CAUSES
from waypoint.processes.profiles.known import Profiles, arguments
from waypoint.processes.respawn.redact import command_line

_NOT_DUMPED = ("pid", "user")  # namespaces of which CRIU dumps none but the session's
_KIND = late_pattern(r"^anon_inode:\[(?:fanotify|perf_event|userfaultfd|landlock-ruleset)\]$|^/dev/(?:fuse|kvm)$")
_NEXT_STEPS = {cause.name: cause.next_step for cause in CAUSES}


def survey(init: int, pids: Collection[int], profiles: Profiles) -> list[SurveyedProcess]:
    """Look at the processes `pids` of the session whose pid 1 is `init`: the tier that a capture would reach if there
    were only this one. Those that end meanwhile are left out. Takes about 0.1 ms a process, more if it has many files
    open.
    """
    return sorted(survey_by_pid(init, pids, profiles).values(), key=lambda one: one.pid)


def survey_by_pid(init: int, pids: Collection[int], profiles: Profiles) -> dict[int, SurveyedProcess]:
    """As `survey`, by the pids that the host sees."""
    own = {kind: _namespace(init, kind) for kind in _NOT_DUMPED}
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            why, cause = _why_not(pid, own)
            found[pid] = surveyed(pid, arguments(pid), profiles, why, cause)
    return found


def surveyed(pid: int, words: Sequence[str], profiles: Profiles, why: str = "", cause: str = "") -> SurveyedProcess:
    """What is told of the process, whose `arguments` are `words`. `why`, `cause`: in words, why CRIU refuses it, and
    the name of the cause. Raises ProcessLookupError.
    """
    matched = profiles.of(words)
    profile = matched.profile if matched else None
    remedy = (profile.remedies.get(cause, "") if profile else "") or _NEXT_STEPS.get(cause, "")
    return SurveyedProcess(
        pid=procfs.session_pid(pid),
        command=command_line(map(as_text, words)),
        tier="respawn" if why else "live",
        why=why or "; ".join(profile.degrades if profile else ()),
        remedy=remedy if why else "",
        profile=matched.name if matched else "",
    )


def _why_not(pid: int, own: dict[str, int]) -> tuple[str, str]:
    """In words, why CRIU refuses the process, and the name of the cause; "" twice if nothing is seen."""
    tracer = task_state(pid).tracer
    if tracer:
        return f"it is traced by {procfs.stat(tracer).name}", "traced"
    for kind, number in own.items():
        if _namespace(pid, kind) != number:
            return f"it is in a {kind} namespace of its own", "nested-namespace"
    for fd, path in procfs.open_files(pid).items():
        if path == "anon_inode:[io_uring]":
            return f"it has an io_uring open (fd {fd})", "io-uring"
        if path == "/dev/tty":
            return f"it keeps /dev/tty open (fd {fd})", "dev-tty"
        if _KIND.search(path):
            return f"it has a file open (fd {fd}) of a kind that CRIU cannot dump: {path}", "kind-of-file"
    return "", ""


def _namespace(pid: int, kind: str) -> int:
    return os.stat(namespaces.path(pid, kind)).st_ino
