"""The init program of every session: dumb-init, in a form that runs on the session's base.

Its wheel has it linked against glibc. A base without that (Alpine, busybox) is given the loader and the C library
beside it, which nothing else in the session finds.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from waypoint.model.errors import HostLacks
from waypoint.processes.criu_install import find_patchelf

_LIBRARY = re.compile(r"=> (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)


def init_program() -> Path:
    """dumb-init, as its wheel installs it: beside the interpreter, else on PATH. Raises HostLacks."""
    beside = Path(sys.executable).parent / "dumb-init"
    found = str(beside) if beside.is_file() else shutil.which("dumb-init")
    if found is None:
        raise HostLacks("find", "dumb-init", "it is neither beside Python nor on PATH", "pip install dumb-init")
    return Path(found)


def place_init(own: Path, inside: str, base: str) -> None:
    """Put it into the folder `own`, which a session on `base` sees as `inside`. Raises HostLacks, OSError."""
    program = own / "init"
    shutil.copy(init_program(), program)
    if base == "/":  # where it runs already
        return
    loader = _output([find_patchelf(), "--print-interpreter", str(program)])
    if not loader or os.path.exists(f"{base}{loader}"):
        return
    libraries = own / "lib"
    libraries.mkdir(mode=0o755)
    for library in (loader, *_LIBRARY.findall(_output([loader, "--list", str(program)]))):
        shutil.copy(library, libraries)
    found = f"{inside}/lib"
    place = ["--set-interpreter", f"{found}/{Path(loader).name}", "--force-rpath", "--set-rpath", found]
    _output([find_patchelf(), *place, str(program)])


def _output(argv: list[str]) -> str:
    """What it prints; nothing if it fails, as patchelf does on a program without an interpreter."""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
