"""From a setting (what was asked for) to a StartSpec (what the launcher does). Plans only; nothing is mounted or
started here.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

from waypoint.linux import mounts, procfs
from waypoint.linux.mounts import MountRecord
from waypoint.model.errors import UsageProblem
from waypoint.model.records import Bind, LiveRow, Setting
from waypoint.session.ground.base import BasePlan, Layer, plan_base
from waypoint.session.ground.places import Places
from waypoint.session.launch.spec import RUN_FOLDER, BindMount, Identity, MemoryMount, Overlay, StartSpec

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.waypoint/bin"

# Files and folders of /proc that uid 0 may write to change the host, whatever its user namespace: the check is for the
# global uid 0.
PROC_READONLY = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "mtrr",
    "acpi",
    "scsi",
    "driver",
    "dynamic_debug",
    "pressure",
)

# The program itself is made the leader of a terminal session: of restored processes only a leader has a controlling
# terminal (CRIU gives it one when its children are there already).
_PID_1 = ("/bin/sh", "/.waypoint/wrapper.sh")
_LEADER = ("/.waypoint/setsid", "--ctty")

SHM = "/dev/shm"
BRANCH_FILE = "branch"  # in /run/waypoint: what a shell that was restored into another branch learns its name from

_OWN_PLACES = ("/proc", "/sys", "/dev", "/.waypoint", "/run/waypoint")  # of every session

_ENV_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ"})


def taken_env(env: dict[str, str]) -> dict[str, str]:
    """What a session takes of its caller's environment: how the terminal speaks, and nothing that may be a secret."""
    return {name: value for name, value in env.items() if name in _ENV_TAKEN or name.startswith("LC_")}


def parse_bind(text: str) -> Bind:
    """`HOST:PATH` or `HOST:PATH:ro`, both absolute. Raises UsageProblem."""
    parts = text.split(":")
    readonly = len(parts) == 3 and parts[2] == "ro"
    if len(parts) not in (2, 3) or (len(parts) == 3 and not readonly) or not all(p.startswith("/") for p in parts[:2]):
        raise UsageProblem("bind", repr(text), "it is not HOST:PATH or HOST:PATH:ro with absolute paths", "see --help")
    source = os.path.realpath(parts[0])
    target = "/" + os.path.normpath(parts[1]).lstrip("/")  # normpath keeps "//"
    if target == "/" or any(f"{target}/".startswith(f"{own}/") for own in _OWN_PLACES):
        raise UsageProblem("bind", repr(text), f"{target} belongs to the session itself", "choose another place")
    bind = Bind(source=source, target=target, readonly=readonly)
    check_bind(bind)
    return bind


def check_bind(bind: Bind) -> None:
    """Raises UsageProblem if there is nothing to bind (any more)."""
    if not os.path.exists(bind.source):
        said = "no such file or directory on the host"
        raise UsageProblem("bind", f"{bind.source} at {bind.target}", said, "make it, or give other --bind options")


def session_env(setting: Setting, branch: str, profile_env: dict[str, str]) -> dict[str, str]:
    user = setting.user
    env = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}
    return {**env, "TERM": "xterm-256color", "WAYPOINT_BRANCH": branch, **profile_env, **setting.env}


def shell_argv(setting: Setting) -> tuple[list[str], dict[str, str]]:
    """The session's program and what it needs in its environment.

    The user's login shell with our hooks if it is bash or zsh; bash where the base has one and the login shell is none;
    else the plain shell (in which `exec` cannot work, and says so).
    """
    if setting.command:
        return setting.command, {}
    shell = setting.user.shell
    if not _is_program(setting.base, shell) or os.path.basename(shell) in ("nologin", "false", "sync", "sh", "dash"):
        shell = next((p for p in ("/bin/bash", "/usr/bin/bash") if _is_program(setting.base, p)), "/bin/sh")
    match os.path.basename(shell):
        case "bash":
            return [shell, "--rcfile", "/.waypoint/hooks.bash", "-i"], {"SHELL": shell}
        case "zsh":
            return [shell, "-i"], {"SHELL": shell, "ZDOTDIR": "/.waypoint/zdotdir"}
        case _:
            return [shell, "-i"], {"SHELL": shell}


def has_hooks(setting: Setting) -> bool:
    """True if the session's program is a shell that will draw a prompt with our hooks in it."""
    return not setting.command and os.path.basename(shell_argv(setting)[0][0]) in ("bash", "zsh")


def _is_program(base: str, path: str) -> bool:
    inside = Path(base) / path.lstrip("/")
    return bool(path) and (inside.is_symlink() or os.access(inside, os.X_OK))


def prepare_tree(tree: Path, plan: BasePlan, setting: Setting, nonce: str, branch: str) -> None:
    """Make the folders of a session's overlays in its upper tree, and `/run/waypoint` afresh in the first of them."""
    for layer in plan.layers:
        upper = tree / layer.folder / "upper"
        if not upper.exists():
            upper.mkdir(parents=True)
            _copy_attributes(_lower(setting, layer), upper)
        (tree / layer.folder / "work").mkdir(exist_ok=True)
    user = setting.user
    run = tree / "m0/upper" / RUN_FOLDER
    if run.is_symlink() or run.parent.is_symlink():  # what a session left behind is not trusted
        raise UsageProblem("go on from", str(tree), "its /run is a link", "start from an older capture")
    shutil.rmtree(run, ignore_errors=True)
    run.parent.mkdir(mode=0o755, exist_ok=True)
    run.mkdir(mode=0o700)
    os.mkfifo(run / "go", mode=0o600)
    for name, content in (("nonce", nonce), (BRANCH_FILE, branch)):
        (run / name).write_text(f"{content}\n")
    for path in (run, *run.iterdir()):
        os.chown(path, user.uid, user.gid)
        path.chmod(0o700 if path == run else 0o600)


def _copy_attributes(source: Path, target: Path) -> None:
    """Those of an overlay's upper folder are the ones that are seen: /tmp is to stay as open as it is."""
    found = source.stat()
    os.chown(target, found.st_uid, found.st_gid)
    target.chmod(stat.S_IMODE(found.st_mode))
    with contextlib.suppress(OSError):  # ENOTSUP: one of the two file systems has no such
        for name in os.listxattr(source):
            if not name.startswith("trusted."):  # another overlay's
                os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def plan_layers(setting: Setting, places: Places) -> BasePlan:
    table = mounts.read_mounts()
    later = _mounted_later(table)
    return plan_base(setting.base, table, later=later, hidden=places.hidden, check=places.check_lower)


def _mounted_later(table: list[MountRecord]) -> list[MountRecord]:
    """What the machine's first process has mounted and we have not; nothing if it lives on another root."""
    host: list[MountRecord] = []
    with contextlib.suppress(PermissionError, ProcessLookupError, FileNotFoundError):
        host = mounts.read_mounts(1)
    roots = [[(m.device, m.root) for m in each if m.mount_point == "/"] for each in (host, table)]
    seen = {mount.mount_point for mount in table}
    return [mount for mount in host if mount.mount_point not in seen] if roots[0] == roots[1] else []


def _lower(setting: Setting, layer: Layer) -> Path:
    return Path(setting.base) / layer.target.lstrip("/")


def start_spec(
    row: LiveRow, plan: BasePlan, places: Places, tree: Path, *, size: tuple[int, int], shm: str = ""
) -> StartSpec:
    """Everything the launcher needs for the session `row`, whose tree `prepare_tree` has prepared.

    `shm`: a folder with what is in its shared memory from the start.
    """
    setting = row.setting
    overlays = []
    for layer in plan.layers:
        lower = str(_lower(setting, layer))
        skeleton = places.kit.skeleton(setting.base, layer.target)
        place = tree / layer.folder
        overlays.append(
            Overlay(
                target=layer.target,
                lowers=[skeleton, lower] if skeleton else [lower],
                upper=str(place / "upper"),
                work=str(place / "work"),
            )
        )
    binds = [
        BindMount(source=str(places.kit.dev), target="/dev", readonly=True, device_nodes=True),
        BindMount(source=str(places.sys), target="/sys", readonly=True),
        *(BindMount(source=b.source, target=b.target, readonly=b.readonly) for b in setting.binds),
    ]
    argv, extra = shell_argv(setting)
    env = {**session_env(setting, row.branch, places.profile_env), **extra}
    user = setting.user
    return StartSpec(
        cgroup=places.cgroup_of(row.session),
        merged=str(places.merged),
        overlays=overlays,
        binds=binds,
        memory=[MemoryMount(target=SHM, content=shm)],
        proc_readonly=[name for name in PROC_READONLY if procfs.has_entry(name)],
        net=setting.net,
        identity=Identity(uid=user.uid, gid=user.gid, groups=user.groups),
        argv=[*_PID_1, *_LEADER, *argv],
        env=env,
        cwd=[setting.cwd, user.home, "/"],
        rows=size[0],
        cols=size[1],
    )
