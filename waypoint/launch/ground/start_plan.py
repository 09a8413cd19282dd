"""Planning a session's start: makes a StartSpec (the request to the launcher) from a Setting (the user's options).

Nothing is mounted or started here; `prepare_tree` makes the folders that the plan needs.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from waypoint.capture.layers.shell import LAST
from waypoint.egress.plan import RESOLVER
from waypoint.launch.externals import SHOWN_OF_SYS, SYS
from waypoint.launch.ground import homes
from waypoint.launch.ground.base import BasePlan, plan_base, plan_in_frame
from waypoint.launch.ground.frame import owner_mode
from waypoint.launch.ground.limits import SHARED_FILES, shared_memory_bytes
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.ground.skeleton import device_binds
from waypoint.launch.spec import BindMount, Identity, MemoryMount, Overlay, StartSpec
from waypoint.launch.walls import masks, refused
from waypoint.linux.calls import abilities
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.deep import remove
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import UsageProblem
from waypoint.model.paths import COMMAND_FOLDER, INIT, OWN_FOLDER, RUN_FOLDER, SHARED_MEMORY, is_below, spelled
from waypoint.model.records import Bind, IdMap, ImageConfig, LiveRow, Seccomp, Setting, User
from waypoint.upper import layout

_COMMANDS = f"/{OWN_FOLDER}/{COMMAND_FOLDER}"
PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{_COMMANDS}"

# The user's program becomes the leader of a terminal session, because CRIU gives only leaders a controlling terminal in
# a restore.
_PID_1 = ("/bin/sh", f"/{INIT}")
_LEADER = (f"/{OWN_FOLDER}/setsid", "--ctty")

_STATES = dict.fromkeys(LAST, "")  # the shell writes only into files that exist
BRANCH_FILE = "branch"  # in the run folder: the branch's name, for a shell that was restored into another branch

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
OWN_PLACES = ("/proc", "/sys", "/dev", f"/{OWN_FOLDER}", f"/{RUN_FOLDER}")  # nothing can be bound over these

_SHARED = ("/tmp", "/var/tmp")  # every user writes there
_ENV_TAKEN = frozenset({"TERM", "COLORTERM", "LANG", "TZ", "WAYPOINT_PROMPT"})


def taken_env(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of the caller's environment that a session gets. All others may contain secrets."""
    return {name: value for name, value in env.items() if name in _ENV_TAKEN or name.startswith("LC_")}


def image_env(image: ImageConfig | None) -> dict[str, str]:
    """The variables of a container image that a session gets: all but those about the terminal and Waypoint."""
    env = dict(one.split("=", 1) for one in image.env) if image is not None else {}
    found = {name: value for name, value in env.items() if name != "TERM" and not name.startswith("WAYPOINT_")}
    return {**found, "PATH": f"{found['PATH']}:{_COMMANDS}"} if "PATH" in found else found


def parse_bind(text: str) -> Bind:
    """Parse `HOST:PATH` or `HOST:PATH:ro`, both paths absolute. Raises UsageProblem."""
    parts = text.split(":")
    readonly = len(parts) == 3 and parts[2] == "ro"
    if len(parts) not in (2, 3) or (len(parts) == 3 and not readonly) or not all(p.startswith("/") for p in parts[:2]):
        raise UsageProblem(
            "bind", repr(text), "it is not HOST:PATH or HOST:PATH:ro with absolute paths", "see 'waypoint shell --help'"
        )
    source = real_path(parts[0], "bind", repr(text))
    target = "/" + os.path.normpath(parts[1]).lstrip("/")  # normpath keeps "//"
    if target == "/" or any(f"{target}/".startswith(f"{own}/") for own in OWN_PLACES):
        raise UsageProblem("bind", repr(text), f"{target} belongs to the session itself", "choose another place")
    bind = Bind(source=source, target=target, readonly=readonly)
    check_bind(bind)
    kind = "socket" if Path(source).is_socket() else "FIFO" if Path(source).is_fifo() else ""
    if readonly and kind:
        homes.check_bind(bind)  # more important
        said = f":ro would not protect this {kind}: what a session sends to it is no change of a file"
        raise UsageProblem("bind", f"{source} at {target}", said, "leave out :ro, or leave out the bind")
    return bind


def real_path(path: str, tried: str, on: str) -> str:
    """Return `path`, which need not exist, with all links resolved. If a link cannot be resolved (such as
    /proc/1/root), raise a UsageProblem with the parts `tried` and `on`.
    """
    try:
        return os.path.realpath(path)
    except OSError as error:
        said = f"{error.strerror}: {os.fsdecode(error.filename or path)}"
        raise UsageProblem(tried, on, said, "name the folder by another path") from error


def check_bind(bind: Bind) -> None:
    """Raise UsageProblem if the bind's source does not exist."""
    if not os.path.exists(bind.source):
        said = "no such file or directory on this machine"
        raise UsageProblem("bind", f"{bind.source} at {bind.target}", said, "create it, or give another --bind")


def session_env(setting: Setting, branch: str, profile_env: dict[str, str]) -> dict[str, str]:
    """Return the environment of a session's program, without the variables that `shell_argv` returns."""
    user = setting.user
    env = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.shell}
    return {**env, "TERM": "xterm-256color", "WAYPOINT_BRANCH": branch, **profile_env, **setting.env}


def shell_argv(setting: Setting) -> tuple[list[str], dict[str, str]]:
    """Return the argv of the session's program, and the variables that it needs besides `session_env`.

    The program is the requested shell, else the one that `usual_shell` chooses; on a pinned base, which does not
    change, it was chosen at the first start. bash and zsh get Waypoint's hooks. In any other shell `exec` is refused.
    """
    if setting.command:
        return setting.command, {}
    chosen = setting.user.shell if setting.pinned else usual_shell(setting.base, setting.user.shell)
    shell = setting.shell or chosen
    match os.path.basename(shell):
        case "bash":
            return [shell, "--rcfile", f"/{OWN_FOLDER}/hooks.bash", "-i"], {"SHELL": shell}
        case "zsh":
            return [shell, "-i"], {"SHELL": shell, "ZDOTDIR": f"/{OWN_FOLDER}/zdotdir"}
        case _:
            return [shell, "-i"], {"SHELL": shell}


def usual_shell(folder: str, shell: str) -> str:
    """The shell of a user whose login shell is `shell`, in the files of `folder`. If the login shell is missing, is a
    plain `sh` or is no shell (nologin), it is the folder's bash, else /bin/sh.
    """
    if _is_program(folder, shell) and not is_plain(shell):
        return shell
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if _is_program(folder, path)), "/bin/sh")


def shell_of(setting: Setting) -> str | None:
    """Return the path of the session's shell, or None if a command runs in its place."""
    return None if setting.command else shell_argv(setting)[0][0]


def has_hooks(shell: str | None) -> bool:
    """Whether the shell has Waypoint's hooks, which announce its prompts."""
    return os.path.basename(shell or "") in ("bash", "zsh")


def is_plain(shell: str) -> bool:
    """Whether the program is a plain `sh` or no shell. A session gets such a program only if the user requests it."""
    return os.path.basename(shell) in ("nologin", "false", "sync", "sh", "dash")


def find_program(roots: Sequence[str], program: str) -> str | None:
    """Return the absolute path of `program` as a session sees it; None if no folder in `roots` contains it. `program`:
    a path, or a name to search for in the session's PATH. `roots`: the folders that contain the session's files.
    """
    places = [program] if "/" in program else [f"{folder}/{program}" for folder in PATH.split(":")]
    found = (path for path in places if path.startswith("/") and any(_is_program(root, path) for root in roots))
    return next(found, None)


def _is_program(base: str, path: str) -> bool:
    """Whether `path` in the folder `base` is a program, or a link. A link counts, because `base` may be an upper layer
    and the link's target in another layer.
    """
    try:
        with open_folder(base) as root:
            fd = beneath.open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        mode = os.fstat(fd).st_mode
        return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and os.access(beneath.name_of(fd), os.X_OK))
    finally:
        os.close(fd)


def prepare_tree(tree: Path, plan: BasePlan, setting: Setting, nonce: str, branch: str) -> None:
    """Make the folders of a session's overlays in its upper tree `tree`, and a new `/run/waypoint` in the folder of the
    root overlay. Remove what hides the present programs of the skeleton: an earlier session may have removed some, and
    a restore may have placed former ones (capture/layers/base_files.py).

    Raises OSError, and UsageProblem if the tree's /run is a link. The folders made so far then remain.
    """
    for target in plan.overlays:
        upper = Path(layout.upper_of(str(tree), target))
        if not upper.exists():
            upper.mkdir(parents=True)
            _copy_attributes(_lower(plan, target), upper)
        Path(layout.work_of(str(tree), target)).mkdir(exist_ok=True)
        if plan.frame is not None and target not in plan.frame.folders:
            _make_above_own(_lower(plan, target), target, upper, setting)
    with open_folder(layout.upper_of(str(tree))) as root:
        with contextlib.suppress(FileNotFoundError):
            remove(root, OWN_FOLDER)
        renew_run_folder(root, setting, nonce, branch)


def renew_run_folder(root: int, setting: Setting, nonce: str, branch: str) -> None:
    """Replace `/run/waypoint` in the folder `root` of a session's tree. Raises OSError, and UsageProblem if the tree's
    /run is a link or a file.
    """
    try:
        _make_run_folder(root, setting.user, {"nonce": f"{nonce}\n", BRANCH_FILE: f"{branch}\n", **_STATES})
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        # An earlier session has replaced /run by a link or a file.
        older = f"'waypoint log {branch}' lists older captures: waypoint shell NEW --from CAPTURE"
        raise UsageProblem(
            "continue from", f"branch {branch}", "its /run is a link or a file, not a folder", older
        ) from error


def _make_run_folder(root: int, user: User, content: dict[str, str]) -> None:
    """Make a new RUN_FOLDER below the folder `root`, owned by `user`, with the files of `content`. Raises OSError."""
    above, name = os.path.split(RUN_FOLDER)
    with contextlib.suppress(FileExistsError):
        os.mkdir(above, 0o755, dir_fd=root)
    with beneath.opened(root, above, os.O_PATH | os.O_DIRECTORY) as parent:
        with contextlib.suppress(FileNotFoundError):
            remove(parent, name)
        os.mkdir(name, 0o700, dir_fd=parent)
        with beneath.opened(parent, name, os.O_RDONLY | os.O_DIRECTORY) as run:
            os.mkfifo("go", 0o600, dir_fd=run)
            for file, text in content.items():
                with open(os.open(file, _NEW, 0o600, dir_fd=run), "w") as opened:
                    opened.write(text)
            for file in ("go", *content):
                os.chmod(file, 0o600, dir_fd=run)  # whatever the umask
                os.chown(file, user.uid, user.gid, dir_fd=run, follow_symlinks=False)
            os.fchmod(run, 0o700)
            os.fchown(run, user.uid, user.gid)


def _make_above_own(lower: Path, target: str, upper: Path, setting: Setting) -> None:
    """Make copies of the folders of other users that are above places in which the session's user writes. Without root,
    overlayfs cannot make them, since it cannot give them to their owners (EOVERFLOW).
    """
    for place in (setting.user.home, setting.cwd, *_SHARED):
        origin, copy = lower, upper
        if not is_below(place, target):
            continue
        for part in Path(place).relative_to(target).parts:
            origin, copy = origin / part, copy / part
            if origin.is_symlink() or not origin.is_dir():
                break
            facts = origin.stat()
            if (facts.st_uid, facts.st_gid) == (os.geteuid(), os.getegid()):
                break
            if not os.path.lexists(copy):
                copy.mkdir()
                _copy_attributes(origin, copy)
            if copy.is_symlink() or not copy.is_dir():
                break


def _copy_attributes(source: Path, target: Path) -> None:
    """Copy owner, mode, extended attributes and times of `source` to the upper folder `target`. The session sees the
    attributes of the upper folder, and for example /tmp must stay writable for all.
    """
    found = source.stat()
    if abilities.own().owners:
        os.chown(target, found.st_uid, found.st_gid)
        target.chmod(stat.S_IMODE(found.st_mode))
    else:
        target.chmod(owner_mode(str(source)))
    with contextlib.suppress(OSError):  # ENOTSUP: one of the two file systems has no extended attributes
        for name in os.listxattr(source):
            if not name.startswith("trusted."):  # attributes that another overlay has set
                os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def plan_overlays(base: str, places: SharedPlaces) -> BasePlan:
    """Plan the overlays of a session with this `Setting.base` from the host's mounts at the last `follow_host`."""
    later = places.host.missing if places.host is not None else []
    table = mounts.read_mounts()
    known = homes.known()
    hidden, folder = (*places.hidden, *known), places.folder_of(base)
    if abilities.own().whole_mounts:
        plan = plan_base(folder, table, later=later, hidden=hidden, check=places.check_lower)
    else:
        plan = plan_in_frame(folder, table, hidden=hidden, own=str(places.runtime), check=places.check_lower)
    return plan._replace(homes=known)


def choose_ids(setting: Setting, plan: BasePlan, places: SharedPlaces, tree: Path) -> tuple[IdMap, str]:
    """Return the id map for a new session, and the reason if it is the host's ("" if not, or if configured).

    Raises UsageProblem if the session would get the host's ids only because a bind cannot be idmapped: a bind must not
    weaken the isolation.
    """
    ours = [*(str(_lower(plan, target)) for target in plan.overlays), str(tree), str(places.home)]
    binds = [bind.source for bind in setting.binds]
    ids, why = places.ids.choose(setting.user, [*ours, *binds])
    if why and binds and not places.ids.choose(setting.user, ours)[1]:
        config, stop = f"{places.home}/config.json", spelled(str(places.home), "daemon", "stop")
        next_step = (
            "bind a folder on a file system that supports idmapped mounts; or, if all sessions of this home may use "
            f"""the machine's ids, with less isolation: write "ids": {{"first": 0}} into {config}, then '{stop}'"""
        )
        raise UsageProblem("bind", ", ".join(binds), why, next_step)
    return ids, why


def choose_seccomp(setting: Setting, places: SharedPlaces) -> tuple[Seccomp, str]:
    """Return the system call filter of a new session, and the reason if it has none ("" if that was configured)."""
    return refused.seccomp_for(setting.allow) if places.filters else ("none", "")


def gone_mounts(targets: list[str]) -> list[Degradation]:
    """Return degradations for `left_out` of a restored session, about overlays at `targets` over mounts that the host
    no longer has.
    """
    if targets == ["/"]:
        return []
    points = {"/", *(mount.mount_point for mount in mounts.read_mounts())}
    return [degradation("mount-gone", target) for target in targets if target not in points]


def _lower(plan: BasePlan, target: str) -> Path:
    return Path(plan.folder) / target.lstrip("/")


def start_spec(row: LiveRow, plan: BasePlan, places: SharedPlaces, tree: Path, size: tuple[int, int]) -> StartSpec:
    """Return the request to start the session `row` with a new program. `tree`: made by `prepare_tree`. `size`: rows
    and columns of its terminal.
    """
    setting = row.setting
    argv, extra = shell_argv(setting)
    return msgspec.structs.replace(
        ground_spec(row, plan, places, tree, size),
        proc_readonly=masks.readonly() if abilities.own().owners else [],  # else nobody in the session may write there
        masked=masks.masked() if abilities.own().owners else [],
        argv=[*_PID_1, *_LEADER, *argv],
        env={**session_env(setting, row.branch, places.profiles.environment()), **extra},
        cwd=[setting.cwd, setting.user.home, "/"],
    )


def ground_spec(
    row: LiveRow, plan: BasePlan, places: SharedPlaces, tree: Path, size: tuple[int, int], shm: str = ""
) -> StartSpec:
    """Return the request for a restore of the session `row`, without a program and masks. `tree`: made by
    `prepare_tree`. `size`: rows and columns of its terminal. `shm`: a host folder that is copied into the session's
    /dev/shm, or "".
    """
    setting, ids = row.setting, plan.ids
    own = places.kit.own(row.session, ids)
    parts = () if plan.whole_sys else SHOWN_OF_SYS
    binds = [
        BindMount(source=f"{own}/dev", target="/dev", readonly=True, device_nodes=True, ours=True),
        *device_binds(),
        BindMount(source=str(places.sys) if plan.whole_sys else f"{own}/sys", target=SYS, readonly=True, ours=True),
        *(BindMount(source=f"{places.sys}/{part}", target=f"{SYS}/{part}", readonly=True, ours=True) for part in parts),
        *(BindMount(source=b.source, target=b.target, readonly=b.readonly, as_user=b.as_user) for b in setting.binds),
    ]
    user, shared = setting.user, shared_memory_bytes(setting.limits)
    limiter = places.limiter.of_session(setting.limits)
    known, kit = homes.known() if plan.homes is None else plan.homes, places.kit
    resolver = RESOLVER if setting.net == "private" else ""
    skeletons = {one: kit.skeleton(plan.folder, one, ids, known, resolver, plan.frame) for one in plan.overlays}
    return StartSpec(
        cgroup=places.cgroup_of(row.session),
        merged=str(places.merged),
        overlays=[_overlay(plan, one, skeleton, tree) for one, skeleton in skeletons.items()],
        binds=binds,
        memory=[MemoryMount(target=SHARED_MEMORY, content=shm, size_bytes=shared, files=SHARED_FILES)],
        proc_readonly=[],
        masked=[],
        net=setting.net,
        identity=Identity(uid=user.uid, gid=user.gid, groups=user.groups),
        argv=[],
        env={},
        cwd=[],
        rows=size[0],
        cols=size[1],
        ids=ids,
        layers=str(places.kit.layers),
        owner=places.ids.owner_of(row.session),
        processes=limiter.most_of_each_user(setting.limits),
    )


def _overlay(plan: BasePlan, target: str, skeleton: str | None, tree: Path) -> Overlay:
    ours = [skeleton] if skeleton else []
    is_framed = plan.frame is not None and target in plan.frame.folders
    return Overlay(
        target=target,
        lowers=[*ours, *([] if is_framed else [str(_lower(plan, target))])],
        upper=layout.upper_of(str(tree), target),
        work=layout.work_of(str(tree), target),
        ours=tuple(ours),
    )
