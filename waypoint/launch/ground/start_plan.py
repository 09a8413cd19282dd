"""Planning a session's start: makes a StartSpec (the launcher's request) from a Setting (what the user asked for).

Nothing is mounted or started here; `prepare_tree` makes the folders that the plan needs.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from waypoint.launch.ground.base import BasePlan, plan_base
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.spec import BindMount, Identity, MemoryMount, Overlay, StartSpec
from waypoint.linux.storage import mounts
from waypoint.linux.storage.mounts import MountRecord
from waypoint.linux.tasks import procfs
from waypoint.model.errors import UsageProblem
from waypoint.model.paths import COMMAND_FOLDER, INIT, OWN_FOLDER, RUN_FOLDER, SHARED_MEMORY
from waypoint.model.records import Bind, LiveRow, Setting
from waypoint.upper import layout

PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/{OWN_FOLDER}/{COMMAND_FOLDER}"

# Files and folders of /proc through which the session's root could change the host: the kernel checks for the global
# uid 0 there, in whatever user namespace that is.
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

# The user's program is made the leader of a terminal session: of restored processes only a leader gets a controlling
# terminal (CRIU restores that after it has made the leader's children).
_PID_1 = ("/bin/sh", f"/{INIT}")
_LEADER = (f"/{OWN_FOLDER}/setsid", "--ctty")

BRANCH_FILE = "branch"  # in the run folder: holds the branch's name, for a shell that was restored into another branch

_OWN_PLACES = ("/proc", "/sys", "/dev", f"/{OWN_FOLDER}", f"/{RUN_FOLDER}")  # nothing can be bound over these

_ENV_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ", "WAYPOINT_PROMPT"})


def taken_env(env: dict[str, str]) -> dict[str, str]:
    """The variables of its caller's environment that a session gets: terminal, language, time zone, and whether the
    prompt shows the branch. All others are left out, since they may be secrets.
    """
    return {name: value for name, value in env.items() if name in _ENV_TAKEN or name.startswith("LC_")}


def parse_bind(text: str) -> Bind:
    """Parse `HOST:PATH` or `HOST:PATH:ro`, both paths absolute. Raises UsageProblem, also if HOST does not exist or
    PATH belongs to the session itself.
    """
    parts = text.split(":")
    readonly = len(parts) == 3 and parts[2] == "ro"
    if len(parts) not in (2, 3) or (len(parts) == 3 and not readonly) or not all(p.startswith("/") for p in parts[:2]):
        raise UsageProblem("bind", repr(text), "it is not HOST:PATH or HOST:PATH:ro with absolute paths", "see --help")
    source = real_path(parts[0], "bind", repr(text))
    target = "/" + os.path.normpath(parts[1]).lstrip("/")  # normpath keeps "//"
    if target == "/" or any(f"{target}/".startswith(f"{own}/") for own in _OWN_PLACES):
        raise UsageProblem("bind", repr(text), f"{target} belongs to the session itself", "choose another place")
    bind = Bind(source=source, target=target, readonly=readonly)
    check_bind(bind)
    return bind


def real_path(path: str, tried: str, on: str) -> str:
    """The path without links, whether it exists or not. Raises UsageProblem, of which `tried` and `on` become parts, if
    the kernel follows a link on the way for nobody (such as /proc/1/root).
    """
    try:
        return os.path.realpath(path)
    except OSError as error:
        said = f"{error.strerror}: {os.fsdecode(error.filename or path)}"
        raise UsageProblem(tried, on, said, "name the folder by another path") from error


def check_bind(bind: Bind) -> None:
    """Raises UsageProblem if the bind's source does not exist (any more)."""
    if not os.path.exists(bind.source):
        said = "no such file or directory on the host"
        raise UsageProblem("bind", f"{bind.source} at {bind.target}", said, "make it, or give other --bind options")


def session_env(setting: Setting, branch: str, profile_env: dict[str, str]) -> dict[str, str]:
    """The environment of a session's program, without what `shell_argv` adds."""
    user = setting.user
    env = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}
    return {**env, "TERM": "xterm-256color", "WAYPOINT_BRANCH": branch, **profile_env, **setting.env}


def shell_argv(setting: Setting) -> tuple[list[str], dict[str, str]]:
    """The session's program with its arguments, and the variables that it needs besides `session_env`.

    The program is the shell that was asked for, else the user's login shell; bash, if the base has one and the login
    shell is missing, a plain `sh` or no shell; else /bin/sh. bash and zsh get Waypoint's hooks. In any other shell
    `exec` is refused.
    """
    if setting.command:
        return setting.command, {}
    shell = setting.shell or setting.user.shell
    if not setting.shell and (not _is_program(setting.base, shell) or is_plain(shell)):
        shell = next((p for p in ("/bin/bash", "/usr/bin/bash") if _is_program(setting.base, p)), "/bin/sh")
    match os.path.basename(shell):
        case "bash":
            return [shell, "--rcfile", f"/{OWN_FOLDER}/hooks.bash", "-i"], {"SHELL": shell}
        case "zsh":
            return [shell, "-i"], {"SHELL": shell, "ZDOTDIR": f"/{OWN_FOLDER}/zdotdir"}
        case _:
            return [shell, "-i"], {"SHELL": shell}


def has_hooks(setting: Setting) -> bool:
    """True if the session's program is a shell with Waypoint's hooks, which announces its prompts."""
    return not setting.command and os.path.basename(shell_argv(setting)[0][0]) in ("bash", "zsh")


def is_plain(shell: str) -> bool:
    """Whether the program is none that a person works in, so that it is a session's shell only if it is asked for."""
    return os.path.basename(shell) in ("nologin", "false", "sync", "sh", "dash")


def find_program(roots: Sequence[str], program: str) -> str | None:
    """The absolute path of `program`, a path or a name, as a session sees it; None if it is in none of `roots`: the
    folders that the session's files come from. A name is looked up in the session's PATH.
    """
    places = [program] if "/" in program else [f"{folder}/{program}" for folder in PATH.split(":")]
    found = (path for path in places if path.startswith("/") and any(_is_program(root, path) for root in roots))
    return next(found, None)


def _is_program(base: str, path: str) -> bool:
    inside = Path(base) / path.lstrip("/")
    return bool(path) and (inside.is_symlink() or (inside.is_file() and os.access(inside, os.X_OK)))


def prepare_tree(tree: Path, plan: BasePlan, setting: Setting, nonce: str, branch: str) -> None:
    """Make the folders of a session's overlays in its upper tree `tree`, and a new `/run/waypoint` in the root
    overlay's.

    Raises UsageProblem if the tree's /run is a link, OSError; folders made so far then stay.
    """
    for target in plan.overlays:
        upper = Path(layout.upper_of(str(tree), target))
        if not upper.exists():
            upper.mkdir(parents=True)
            _copy_attributes(_lower(setting, target), upper)
        Path(layout.work_of(str(tree), target)).mkdir(exist_ok=True)
    user = setting.user
    run = Path(layout.upper_of(str(tree))) / RUN_FOLDER
    if run.is_symlink() or run.parent.is_symlink():  # an earlier session may have made it, to lead the daemon elsewhere
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
    """Copy owner, mode, extended attributes and times of `source` to `target`, an overlay's upper folder: a session
    sees the upper folder's, and /tmp must stay writable for all.
    """
    found = source.stat()
    os.chown(target, found.st_uid, found.st_gid)
    target.chmod(stat.S_IMODE(found.st_mode))
    with contextlib.suppress(OSError):  # ENOTSUP: one of the two file systems has no extended attributes
        for name in os.listxattr(source):
            if not name.startswith("trusted."):  # set by another overlay
                os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def plan_overlays(base: str, places: SharedPlaces) -> BasePlan:
    """Plan the overlays of a session on `base` from the host's mounts as they are now."""
    table = mounts.read_mounts()
    later = _mounted_later(table)
    return plan_base(base, table, later=later, hidden=places.hidden, check=places.check_lower)


def tell_gone(targets: list[str]) -> list[str]:
    """Lines for `left_out` about a restored session with overlays at `targets`: those that were over mounts which the
    host does not have any more.
    """
    points = {"/", *(mount.mount_point for mount in mounts.read_mounts())}
    said = "no longer mounted here: of its files only what the session has changed is there"
    return [f"{target} ({said})" for target in targets if target not in points]


def _mounted_later(table: list[MountRecord]) -> list[MountRecord]:
    """The mounts that the host's pid 1 sees and the daemon does not; none if pid 1 has another root file system."""
    host: list[MountRecord] = []
    with contextlib.suppress(PermissionError, ProcessLookupError, FileNotFoundError):
        host = mounts.read_mounts(1)
    roots = [[(m.device, m.root) for m in each if m.mount_point == "/"] for each in (host, table)]
    seen = {mount.mount_point for mount in table}
    return [mount for mount in host if mount.mount_point not in seen] if roots[0] == roots[1] else []


def _lower(setting: Setting, target: str) -> Path:
    return Path(setting.base) / target.lstrip("/")


def start_spec(
    row: LiveRow, plan: BasePlan, places: SharedPlaces, tree: Path, *, size: tuple[int, int], shm: str = ""
) -> StartSpec:
    """The request to start the session `row`, whose tree `prepare_tree` has prepared. `size`: rows and columns of its
    terminal. `shm`: a host folder that is copied into the session's /dev/shm; "": that begins empty.
    """
    setting = row.setting
    overlays = []
    for target in plan.overlays:
        lower = str(_lower(setting, target))
        skeleton = places.kit.skeleton(setting.base, target)
        overlays.append(
            Overlay(
                target=target,
                lowers=[skeleton, lower] if skeleton else [lower],
                upper=layout.upper_of(str(tree), target),
                work=layout.work_of(str(tree), target),
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
        memory=[MemoryMount(target=SHARED_MEMORY, content=shm)],
        proc_readonly=[name for name in PROC_READONLY if procfs.has_entry(name)],
        net=setting.net,
        identity=Identity(uid=user.uid, gid=user.gid, groups=user.groups),
        argv=[*_PID_1, *_LEADER, *argv],
        env=env,
        cwd=[setting.cwd, user.home, "/"],
        rows=size[0],
        cols=size[1],
    )
