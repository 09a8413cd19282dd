"""Probes for the words of `@pytest.mark.requires(...)`: each tries a program or feature that a test needs.

Each probe runs at most once per run, when a test asks for its word.
"""

import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.places import ROOT
from waypoint.setup import criu_build

PROBE_TIMEOUT_S = 60  # all workers probe at the same time


@functools.cache
def missing(word: str) -> str:
    """Return why the machine lacks the need `word`; "" if the machine has it."""
    return PROBES[word]()


def _answers(*command: str) -> Callable[[], str]:
    """Make a probe that runs a program and checks its exit status."""
    return lambda: _try(list(command))


def _in_private_mounts(script: str) -> Callable[[], str]:
    """Make a probe that runs shell text in a temporary folder and its own mount namespace."""
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
    """Dump and restore a process, because `criu check` also reports "Looks good" where real dumps fail."""
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


def _own_criu() -> str:
    """Try whether the tests' CRIU has Waypoint's patches."""
    criu = os.environ.get("WAYPOINT_CRIU")
    if not criu:
        return "no WAYPOINT_CRIU"
    done = subprocess.run([criu, "--version"], capture_output=True, text=True, check=False)
    return "" if f"GitID: {criu_build.GITID}" in done.stdout else f"{criu} has not Waypoint's patches"


def _public_checkout() -> str:
    """Try whether an ordinary user can run this checkout's Python; the checkout may lie in a private folder."""
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
    """Try to open a perf counter of a cgroup's processor time, on the first processor."""
    return _try([sys.executable, "-c", _PERF_CGROUP, str(_cgroup2_root())])


def _controller(name: str) -> Callable[[], str]:
    """Make a probe whether Waypoint can limit sessions by this cgroup controller."""
    return _answers(sys.executable, "-c", _CONTROLLER, name)


_CONTROLLER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.launch.ground.limits import find_limiter
from waypoint.linux.tasks import cgroups
root = cgroups.find_hierarchies().unified
group = f"{{root}}/waypoint-probe-{{__import__('os').getpid()}}"
cgroups.create(group)
try:
    found = find_limiter(group, cgroups.delegate(root, ("memory", "pids", "cpu")))
    sys.exit(found.missing.get(sys.argv[1]) or 0)
finally:
    cgroups.end(group)
"""

_QUOTAS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.linux.storage import quota
quota.enable("m")
"""

_IO_URING = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120)) < 0)"
# Calls getpid through the 32-bit system call interface.
_I386 = """
import ctypes, mmap, os, sys
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000 cd80 c3"))
sys.exit(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() != os.getpid())
"""
_PERF_CGROUP = """
import ctypes, os, struct, sys
number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
clock = struct.pack("IIQQQQQII8x", 1, 64, 0, 1000000, 0, 0, 1, 0, 0)
group = os.open(sys.argv[1], os.O_RDONLY)
sys.exit(ctypes.CDLL(None).syscall(number, clock, group, 0, -1, 4) < 0)
"""

_IDMAPPED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from waypoint.launch.ground.id_choice import IdChoice
from waypoint.linux.storage import mounts
places = [place for place in ("/", "/home", "/tmp", "/var/tmp") if Path(place).is_dir()]
mounts.mount("tmpfs", "/mnt", "tmpfs")
sys.exit(IdChoice(2_000_683_008, Path("/mnt"), Path("/mnt")).why_not(places) or 0)
"""

_SECCOMP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from waypoint.linux.calls import seccomp
sys.exit(seccomp.why_not() or 0)
"""

PROBES: dict[str, Callable[[], str]] = {
    "apt-get": _answers("apt-get", "--version"),
    "buildah": _answers("buildah", "--version"),
    "busybox": _answers("busybox", "true"),
    "perf-cgroup": _perf_cgroup,
    "own-criu": _own_criu,
    "own-limits": _answers("sh", "-c", "ulimit -n 100 && ulimit -Hn 101"),
    "patch": _answers("patch", "--version"),
    "postgres": _answers("postgres", "--version"),
    "public-checkout": _public_checkout,
    "root": _in_private_mounts("mount -t tmpfs none . && mknod node c 1 3 && chown 1:1 node"),
    "overlay": _in_private_mounts(
        "mount -t tmpfs none . && mkdir l u w m && mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m && touch m/f"
    ),
    "btrfs": _in_private_mounts(
        "fallocate -l 128M i && mkfs.btrfs -q i && mkdir m && mount -o loop i m && btrfs -q subvolume create m/s"
    ),
    "cgroup2": _cgroup2,
    "controller-cpu": _controller("cpu"),
    "controller-memory": _controller("memory"),
    "controller-pids": _controller("pids"),
    "criu": _criu,
    "cargo": _answers("cargo", "--version"),
    "chromium": _answers("chromium", "--version"),
    "gcc": _answers("gcc", "--version"),
    "gdb": _answers("gdb", "--version"),
    "git": _answers("git", "--version"),
    "headers": _answers("test", "-e", "/usr/include/asm-generic/unistd.h"),
    "i386": _answers(sys.executable, "-c", _I386),
    "idmapped": _answers("unshare", "--mount", "--propagation", "private", sys.executable, "-c", _IDMAPPED),
    "io_uring": _answers(sys.executable, "-c", _IO_URING),
    "java": _answers("java", "-version"),
    "less": _answers("less", "--version"),
    "make": _answers("make", "--version"),
    "network": _answers(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", ".", "h11"),
    "node": _answers("node", "--version"),
    "npm": _answers("npm", "--version"),
    "agents": _answers("test", "-e", str(ROOT / ".venv/agents/installed")),
    "man": _answers("man", "--version"),
    "seccomp": _answers(sys.executable, "-c", _SECCOMP),
    "simple-quotas": _in_private_mounts(
        "fallocate -l 128M i && mkfs.btrfs -q i && mkdir m && mount -o loop i m && "
        + shlex.join([sys.executable, "-c", _QUOTAS])
    ),
    "strace": _answers("strace", "-o", "log", "true"),
    "systemd-analyze": _answers("systemd-analyze", "--version"),
    "timens": _answers("unshare", "--time", "true"),
    "tmux": _answers("tmux", "-V"),
    "userns": _answers("unshare", "--user", "--map-root-user", "true"),
    "vagrant": _answers("vagrant", "--version"),
    "vi": _answers("vi", "--version"),
    "zsh": _answers("zsh", "-fc", "true"),
}
