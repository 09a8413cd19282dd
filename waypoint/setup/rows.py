"""The rows of `waypoint doctor` about CRIU: their names, and functions that make them."""

import dataclasses

from waypoint.model.conditions import CONDITIONS
from waypoint.model.session_facts import Capability

CRIU = "CRIU"
DUMP = "dump"
DUMP_TERMINAL = "dump with a terminal"
DUMP_SOCKET = "dump with an inet socket"
RESTORE = "restore"
LAZY_PAGES = "lazy restore (userfaultfd)"
MEMORY_TRACKING = "incremental dumps (soft-dirty)"

REQUIRED = (CRIU, DUMP, DUMP_TERMINAL, DUMP_SOCKET, RESTORE)
"""The capabilities that the tier `live` needs, in the order in which a trial tries them."""

WITHOUT_ROOT = "this home works without root, and CRIU needs root"
REMEDY = "run `waypoint setup`, which finds or installs a CRIU that works, or set WAYPOINT_CRIU to one"
CHOOSE_ANOTHER = "set WAYPOINT_CRIU to a CRIU that works here, or unset it; then `waypoint daemon stop`"
"""The next step for the CRIU in WAYPOINT_CRIU, where `waypoint setup` would find the same CRIU. The daemon must be
stopped, because it keeps the value that the variable had at its start.
"""

MENDED = {
    "10-exact-again.patch": "interrupted-calls",
    "12-stopped-pending.patch": "stopped-jobs",
    "13-timer-thread.patch": "thread-timers",
    "14-vast-mappings.patch": "sanitizers",
    "15-no-vdso.patch": "sanitizers",
    "16-restrictions.patch": "restrictions",
    "17-templates.patch": "memory-not-shared",
    "18-process-controls.patch": "process-controls",
    "20-ghost-race.patch": "removed-open-files",
    "21-ghost-names.patch": "removed-open-files",
    "22-no-link.patch": "touched-folders",
    "23-strangers.patch": "disturbed-by-others",
    "24-proc-folder.patch": "folders-in-proc",
    "24-eventfd-semaphore.patch": "semaphore-counters",
    "24-inherited-locks.patch": "inherited-locks",
    "25-repair-queue.patch": "stalled-connections",
    "26-half-closed.patch": "half-closed-connections",
    "27-restore-lock.patch": "data-in-flight",
    "28-empty-datagrams.patch": "empty-datagrams",
    "28-outside-unix.patch": "refused-connections",
    "28-segment-size.patch": "stalled-connections",
    "28-unix-peers.patch": "unix-peers",
    "29-window.patch": "stalled-connections",
}
"""By patch of `criu/patches`: the code of the condition (model/conditions.py) that the patch removes. Patches for the
log and for speed, 40 to 59, are not listed.
"""


def passed(rows: list[Capability]) -> bool:
    """True if `rows` is not empty and every capability in it that the tier `live` needs works."""
    return bool(rows) and all(row.state == "ok" for row in rows if row.required_for != "optional")


def works(name: str, why: str = "") -> Capability:
    """The row of a capability in REQUIRED that works. `why`: a detail to show, such as the version."""
    return Capability(name=name, state="ok", why=why, required_for="live")


def fails(name: str, why: str, remedy: str = "") -> Capability:
    """The row of a capability in REQUIRED that does not work, or was not tried, for the reason `why`. `remedy`: what
    the user can do; "": install or choose another CRIU.
    """
    return Capability(name=name, state="missing", why=why, remedy=remedy or REMEDY, required_for="live")


def optional(name: str, why: str, remedy: str = "") -> Capability:
    """The row of an optional feature. `why`: the reason why CRIU cannot use the feature; "": CRIU can use it. `remedy`:
    what the user can do.
    """
    return Capability(name=name, state="missing" if why else "ok", why=why, remedy=remedy, required_for="optional")


def missing_criu(why: str, remedy: str = "") -> list[Capability]:
    """The rows of a trial that could not be made, for the reason `why`. `remedy`: what the user can do."""
    features = [optional(name, why, remedy or REMEDY) for name in (LAZY_PAGES, MEMORY_TRACKING)]
    return [fails(name, why, remedy) for name in REQUIRED] + features


def of_chosen(rows: list[Capability]) -> list[Capability]:
    """The rows of a trial of the CRIU in WAYPOINT_CRIU, with other advice in place of `waypoint setup`, which would not
    help.
    """
    return [dataclasses.replace(row, remedy=CHOOSE_ANOTHER) if row.remedy == REMEDY else row for row in rows]


def unpatched() -> list[Capability]:
    """The rows for a CRIU without Waypoint's patches: one for each condition in MENDED."""
    codes = dict.fromkeys(MENDED.values())
    return [
        Capability(
            name=code.replace("-", " "),
            state="degraded",
            why=f"without Waypoint's patches of CRIU: {CONDITIONS[code].text}",
            remedy=CONDITIONS[code].remedy,
            code=code,
        )
        for code in codes
    ]
