"""What a test may need of the machine, found out by doing it. The words of `@pytest.mark.requires(...)`.

Each probe runs at most once per run and only if a test asks for its word.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

PROBE_TIMEOUT_S = 60


def missing(word: str) -> str:
    """Why the machine lacks `word`; empty if it does not. Raises KeyError for an unknown word."""
    return _probed(word)


@functools.cache
def _probed(word: str) -> str:
    return PROBES[word]()


def _answers(*command: str) -> Callable[[], str]:
    """A probe that runs a program and looks at nothing but its status."""
    return lambda: _try(list(command))


def _in_private_mounts(script: str) -> Callable[[], str]:
    """A probe that runs shell text in a temporary folder and a mount namespace of its own: it leaves no mount."""
    return lambda: _try(["unshare", "--mount", "--propagation", "private", "sh", "-ec", script])


def _try(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return f"no program {command[0]}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)}: no answer within {PROBE_TIMEOUT_S} s"
    if done.returncode == 0:
        return ""
    words = (done.stderr or done.stdout).decode(errors="replace").strip()
    return f"{command[0]}: status {done.returncode}: {words[-300:]}"


def _criu() -> str:
    """Dump a process and bring it back: `criu check` says "Looks good" where real dumps fail."""
    criu = os.environ.get("WAYPOINT_CRIU") or shutil.which("criu", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not criu:
        return "no CRIU: neither WAYPOINT_CRIU nor a program criu"
    script = """
        setsid sleep 60 </dev/null >/dev/null 2>&1 &
        trap 'kill $(cat pid) 2>/dev/null || :' EXIT
        echo $! >pid; mkdir images
        until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done
        "$0" dump -t $! -D images -o dump.log || { tail -n 3 images/dump.log >&2; exit 1; }
        wait $! || :; rm pid
        "$0" restore -d -D images -o restore.log --pidfile "$PWD/pid" || { tail -n 3 images/restore.log >&2; exit 1; }
    """
    return _try(["sh", "-ec", script, criu])


def _public_checkout() -> str:
    """Ordinary users can run the command of this checkout: it does not lie in root's own folder, say."""
    return _try(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", ""])


def _cgroup2() -> str:
    root = _cgroup2_root()
    if root is None:
        return "no cgroup2 is mounted"
    group = root / f"waypoint-probe-{os.getpid()}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError as error:
        return str(error)
    return ""


def _cgroup2_root() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    return None


def _perf_cgroup() -> str:
    """A counter of the processor time that a cgroup uses, on the first processor."""
    return _try([sys.executable, "-c", _PERF_CGROUP, str(_cgroup2_root())])


_IO_URING = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120)) < 0)"
_PERF_CGROUP = """
import ctypes, os, struct, sys
number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
clock = struct.pack("IIQQQQQII8x", 1, 64, 0, 1000000, 0, 0, 1, 0, 0)
group = os.open(sys.argv[1], os.O_RDONLY)
sys.exit(ctypes.CDLL(None).syscall(number, clock, group, 0, -1, 4) < 0)
"""

PROBES: dict[str, Callable[[], str]] = {
    "perf-cgroup": _perf_cgroup,
    "public-checkout": _public_checkout,
    "root": _in_private_mounts("mount -t tmpfs none . && mknod node c 1 3 && chown 1:1 node"),
    "overlay": _in_private_mounts(
        "mount -t tmpfs none . && mkdir l u w m && mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m && touch m/f"
    ),
    "btrfs": _in_private_mounts(
        "fallocate -l 128M i && mkfs.btrfs -q i && mkdir m && mount -o loop i m && btrfs -q subvolume create m/s"
    ),
    "cgroup2": _cgroup2,
    "criu": _criu,
    "git": _answers("git", "--version"),
    "io_uring": _answers(sys.executable, "-c", _IO_URING),
    "less": _answers("less", "--version"),
    "network": _answers(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", ".", "h11"),
    "node": _answers("node", "--version"),
    "man": _answers("man", "--version"),
    "strace": _answers("strace", "-o", "log", "true"),
    "systemd-analyze": _answers("systemd-analyze", "--version"),
    "timens": _answers("unshare", "--time", "true"),
    "tmux": _answers("tmux", "-V"),
    "userns": _answers("unshare", "--user", "--map-root-user", "true"),
    "vagrant": _answers("vagrant", "--version"),
    "vi": _answers("vi", "--version"),
    "zsh": _answers("zsh", "-fc", "true"),
}
