"""Installing files outside of the home: completion for bash and zsh and, on a machine with systemd, a unit.

All homes of a machine share the completion files: these list the homes, and are removed together with the last home.
Each home has its own unit.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import waypoint
from waypoint.linux.storage import files
from waypoint.model.paths import may_exist
from waypoint.setup.machine import completion, unit

SHARE = "usr/local/share"
BASH_COMPLETION = "usr/share/bash-completion/bash_completion"  # the package that makes bash load completion files
UNITS = "etc/systemd/system"
SYSTEMD_RUNS = "run/systemd/system"  # sd_booted(3)
SYSTEMCTL_S = 60.0
PROGRAM = [sys.executable, "-I", "-S", str(Path(waypoint.__file__).parent / "cli/main.py")]
Say = Callable[[str], None]


def install(home: Path, root: Path, say: Say) -> None:
    """Write the missing files for `home` below the folder `root`, which is `/` except in tests.

    If `root` is `/`, the unit is also enabled and started. An error of systemctl is only printed, because Waypoint
    works without systemd.
    """
    add_completion(home, root / SHARE, say, root)
    if not (root / SYSTEMD_RUNS).is_dir():
        return
    path = root / UNITS / unit.name_of(str(home))
    text = unit.text_of(str(home), PROGRAM)
    if not path.exists() or path.read_bytes() != os.fsencode(text):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.publish(str(path), os.fsencode(text), mode=0o644)
        say(f"wrote {path}")
        _systemctl(root, say, "daemon-reload")
    _systemctl(root, say, "enable", "--now", path.name)


def remove(home: Path, root: Path, say: Say) -> None:
    """Remove the files of `install`. May be repeated."""
    remove_completion(home, root / SHARE, say)
    path = root / UNITS / unit.name_of(str(home))
    if path.exists():
        _systemctl(root, say, "disable", "--now", path.name)
        path.unlink()
        say(f"removed {path}")
        _systemctl(root, say, "daemon-reload")
    if root != Path("/"):
        with contextlib.suppress(OSError):  # ENOTEMPTY: the folder contains other files
            for folder in (root / SHARE, *(root / SHARE).parents[: len(Path(SHARE).parents) - 1]):
                folder.rmdir()


def add_completion(home: Path, share: Path, say: Say, root: Path = Path("/")) -> None:
    """Write the completion files below `share`, a folder for data, unless they exist. `root`: as for `install`."""
    with _homes_of(home, share) as others:
        for place, text in completion.scripts(sorted({*others, str(home)}), PROGRAM).items():
            path = share / place
            if path.exists() and path.read_text(errors="replace") == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            files.publish(str(path), text.encode(), mode=0o644)
            if str(home) in others:
                continue
            say(f"wrote {path}")
            if place == completion.BASH and not (root / BASH_COMPLETION).exists():
                say(f"bash reads it with the package bash-completion, or with this line in ~/.bashrc: . {path}")


def remove_completion(home: Path, share: Path, say: Say) -> None:
    """Remove the completion files, unless another home uses them, and the folders that become empty."""
    if not share.is_dir():
        return
    with _homes_of(home, share) as others:
        is_listed = str(home) in others
        others = [other for other in others if other != str(home)]
        for place, text in completion.scripts(others, PROGRAM).items():
            path = share / place
            if not path.exists():
                continue
            if others:
                files.publish(str(path), text.encode(), mode=0o644)
                if is_listed:
                    say(f"kept {path}: {', '.join(others)} {'uses' if len(others) == 1 else 'use'} it, too")
                continue
            path.unlink()
            say(f"removed {path}")
            with contextlib.suppress(OSError):  # ENOTEMPTY: the folder contains other files
                for folder in list(path.parents)[: len(Path(place).parents) - 1]:
                    folder.rmdir()


@contextlib.contextmanager
def _homes_of(home: Path, share: Path) -> Iterator[list[str]]:
    """Yield the existing homes that use the completion files below `share`, and `home` if it uses them. A lock keeps
    other setups from changing the files during the `with` block.
    """
    share.mkdir(parents=True, exist_ok=True)
    lock = files.lock_folder(str(share))
    try:
        known = completion.homes_of(share / completion.BASH)
        yield [other for other in known if other == str(home) or may_exist(f"{other}/config.json")]
    finally:
        os.close(lock)


def _systemctl(root: Path, say: Say, *words: str) -> None:
    if root != Path("/"):
        return
    try:
        done = subprocess.run(
            ["systemctl", "--quiet", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_S,
            check=False,
        )
        said = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        say(f"systemctl {' '.join(words)}: {said}; Waypoint works without systemd, too")
