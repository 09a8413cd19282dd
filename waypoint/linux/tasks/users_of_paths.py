"""Finds the processes that use given files or folders: open, mapped (programs, too), as working directory or root."""

import contextlib
import re
from collections.abc import Collection, Iterable

from waypoint.linux.tasks import procfs

_MAPPED = re.compile(rb" (/.*)$", re.MULTILINE)  # proc_pid_maps(5)


def find(pids: Iterable[int], paths: Collection[str]) -> dict[int, list[str]]:
    """By process, which of `paths` it uses, or a file below; sorted. Paths are those in the root of the processes'
    mount namespace. Skips processes that have ended. A frozen process is read in some 0.2 ms.
    """
    found = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            used = {path for link in _links(pid) for path in _above(link) if path in paths}
            if used:
                found[pid] = sorted(used)
    return found


def _links(pid: int) -> set[str]:
    links = set(procfs.open_files(pid).values())
    links.update(procfs.read_link(f"/proc/{pid}/{name}") for name in ("cwd", "root"))
    with open(f"/proc/{pid}/maps", "rb") as maps:
        # The kernel writes line ends in a name as \012.
        mapped = (path.replace(b"\\012", b"\n") for path in _MAPPED.findall(maps.read()))
        links.update(path.decode(errors="surrogateescape") for path in mapped)
    return {link for link in links if link.startswith("/")}


def _above(path: str) -> Iterable[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]
