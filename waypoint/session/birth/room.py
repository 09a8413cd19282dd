"""Checks, from the record of a capture, that the limits of the new sessions and of the machine have room for its
processes. They are made before anything is started: CRIU would fail at the end of its work.
"""

from waypoint.launch.ground.limits import fill_in
from waypoint.launch.ground.places import SharedPlaces
from waypoint.linux.calls import hard_limits, inotify, machine
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import CannotCapture, Failed, StateConflict
from waypoint.model.records import Capture, ProcessesLayer, Setting
from waypoint.processes.criu.causes import known

_TRIED = "restore the processes of"
_DESCRIPTORS = 16  # of the daemon for each session; up to 12 were counted
_SPARE_DESCRIPTORS = 64  # for clients, and for the work of the daemon itself
_WATCHES = "fs.inotify.max_user_watches"


def check(places: SharedPlaces, setting: Setting, origin: Capture, copies: int) -> None:
    """Raise CannotCapture or Failed if `copies` sets of the processes of `origin` certainly do not fit into sessions
    with `setting`. Processes that the new ones are to replace exist until then, and count.
    """
    layer = origin.layer(ProcessesLayer)
    if layer is None:
        return
    whose = "its processes" if copies == 1 else f"{copies} copies of its processes"
    _check_watched(origin, layer, copies, whose)
    _check_own_limits(places, setting, origin, layer)
    tasks = max(layer.count, layer.tasks) * copies
    found = [machine.most_processes() - machine.count_processes(), cgroups.free_processes(places.cgroup)]
    free = min(one for one in found if one is not None)
    if tasks > free:
        said = f"{whose} are {tasks} processes and threads, and only {max(0, free)} more can exist on this machine"
        raise CannotCapture(_TRIED, origin.id[:12], said, "end other sessions, and try again", code="criu-used-up")
    room, needed = cgroups.free_memory_bytes(places.cgroup), layer.size_bytes * copies
    if room is not None and needed > room:
        said = f"{whose} need {needed >> 20} MiB of memory, and the limit of a cgroup leaves {max(0, room) >> 20} MiB"
        raise Failed(_TRIED, origin.id[:12], said, "end other sessions, or raise that limit", code="out-of-memory")


def check_descriptors(sessions: int) -> None:
    """Raise StateConflict if this daemon could not open the files of so many more sessions, and still serve clients."""
    free, needed = hard_limits.free_descriptors(), sessions * _DESCRIPTORS + _SPARE_DESCRIPTORS
    if needed > free:
        said = f"the daemon needs {needed} descriptors for them, and its limit of open files leaves {max(0, free)}"
        next_step = "end other sessions, or raise that limit (ulimit -Hn) and run 'waypoint daemon stop'"
        raise StateConflict("start", f"more sessions ({sessions})", said, next_step, code="too-many-sessions")


def _check_watched(origin: Capture, layer: ProcessesLayer, copies: int, whose: str) -> None:
    """The kernel counts inotify instances for the host's root if it owns the user namespace of the restored processes,
    or if they are root's themselves.
    """
    is_roots = layer.ids.is_shifted or origin.setting.user.uid == 0
    instances, watches = layer.watchers * copies, layer.watches * copies
    if is_roots and instances and not inotify.can_have(instances):
        cause = known("inotify-instances", "", {})
        said = f"{whose} need {instances} lists of watched files, and {cause.meaning}"
        raise CannotCapture(_TRIED, origin.id[:12], said, cause.next_step, code="criu-inotify-instances")
    if watches and watches > (most := inotify.most_watches()):
        said, next_step = f"{whose} watch {watches} files, and {_WATCHES} allows {most}", f"sysctl {_WATCHES}"
        next_step = f"raise that limit: {next_step}={2 * watches}"
        raise CannotCapture(_TRIED, origin.id[:12], said, next_step, code="too-many-watches")


def _check_own_limits(places: SharedPlaces, setting: Setting, origin: Capture, layer: ProcessesLayer) -> None:
    """Check the limits of the session, as far as the machine enforces them."""
    limits, missing = fill_in(setting.limits), places.limiter.of_session(setting.limits).missing
    start = f"waypoint shell NEW --from {origin.id[:12]}"
    tasks = max(layer.count, layer.tasks)
    memory = limits.memory or layer.size_bytes
    if "memory" not in missing and layer.size_bytes > memory + machine.free_swap_bytes():
        said = f"its processes need {layer.size_bytes >> 20} MiB of memory, but may have {memory >> 20} MiB"
        more = f"give the session more memory: {start} --memory {(layer.size_bytes >> 19) + 1}M"
        raise CannotCapture(_TRIED, origin.id[:12], said, more)
    if "pids" not in missing and tasks > (limits.pids or tasks):
        said = f"its processes have {tasks} threads, but may have {limits.pids}"
        raise CannotCapture(_TRIED, origin.id[:12], said, f"allow it more: {start} --pids {2 * tasks}")
