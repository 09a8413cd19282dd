"""Finding files that nobody wants to see in a list of changes: those that `.gitignore` files name, caches and logs.

git decides, in an empty repository of our own to which only the `.gitignore` files are copied: in the session's files
it could be made to run programs, to follow links, or to wait for a pipe.
"""

import contextlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping

from waypoint.linux.calls import programs
from waypoint.linux.storage import beneath
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.records import User

CACHES_AND_LOGS = """\
__pycache__/
*.py[co]
.cache/
.ccache/
.mypy_cache/
.npm/
.pytest_cache/
.ruff_cache/
*.log
.*.sw[op]
/root/.cargo/registry/
/var/cache/
/var/lib/apt/lists/
/var/log/
"""
_ROOT = User(name="root", uid=0, gid=0, groups=[], home="/", shell="")
_MOST_RULES = 1 << 20  # bytes of one .gitignore file; a larger one is not read
_MOST_PATH = 4000  # bytes of a path that git accepts, with the folder before it
_A_FILE = ".waypoint-new"  # stands for any new file of a folder
_TIME_S = 20.0


def find_ignored(on: str, view: int, target: str, paths: Mapping[str, bool], user: User | None) -> set[str]:
    """Those of `paths` that are ignored. A path is relative to the view, of the mount at `target`; its value says
    whether it is a folder, which is ignored if a new file in it would be. `user`: whose rights the thread has; None:
    those of root.
    """
    with tempfile.TemporaryDirectory() as top:
        _git("init", "--quiet", "--template=", top, on=on, user=user or _ROOT)
        os.mkdir(f"{top}/.git/info")
        _write(f"{top}/.git/info/exclude", CACHES_AND_LOGS.encode())
        root = os.path.normpath(f"{top}/{target}")
        for folder in _folders_above(paths):
            rules = _read_rules(view, folder)
            if rules:
                with contextlib.suppress(OSError):  # the path is too long
                    os.makedirs(f"{root}/{folder}", exist_ok=True)
                    _write(f"{root}/{folder}/.gitignore", rules)
        asked = {_asked(path, target, is_folder=is_folder): path for path, is_folder in paths.items()}
        given = b"".join(name + b"\0" for name in asked if len(name) < _MOST_PATH)
        answer = _git("-C", top, "check-ignore", "--no-index", "-z", "--stdin", on=on, given=given, user=user or _ROOT)
    return {asked[name] for name in answer.split(b"\0") if name}


def _asked(path: str, target: str, *, is_folder: bool) -> bytes:
    """The path as git gets it: with a dot in front, because a colon at the beginning has a meaning."""
    return os.fsencode(f".{target.rstrip('/')}/{path}" + (f"/{_A_FILE}" if is_folder else ""))


def _folders_above(paths: Iterable[str]) -> set[str]:
    found = {""}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _read_rules(view: int, folder: str) -> bytes:
    path = f"{folder}/.gitignore".lstrip("/")
    with contextlib.suppress(OSError), beneath.opened(view, path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        facts = os.fstat(fd)
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= _MOST_RULES:
            return os.read(fd, _MOST_RULES)
    return b""


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _git(*words: str, on: str, user: User, given: bytes = b"") -> bytes:
    try:
        done = programs.answer("git", *words, given=given, user=user, home="/", timeout_s=_TIME_S)
    except FileNotFoundError as error:
        raise HostLacks("compare", on, "git is not installed", "install the package git, or omit --ignore") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(
            "compare", on, "git takes too long to match the rules of .gitignore files", "omit --ignore"
        ) from error
    if done.returncode not in (0, 1):  # 1: no path is ignored
        lines = os.fsdecode(done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed("run git for", on, lines[0][:200], "omit --ignore")
    return done.stdout
