"""A small root file system for a test: some programs of this machine and their libraries."""

import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("bash", "cat", "env", "id", "ls", "mkdir", "mv", "pwd", "rm", "sleep", "stat", "touch", "wc")
PASSWD = "root:x:0:0:root:/root:/bin/bash\ntester:x:4321:4322:a tester:/home/tester:/bin/bash\n"
GROUP = "root:x:0:\ntesters:x:4322:\nextra:x:4323:tester\n"


def make_base(folder: Path, *more: str, bash: bool = True) -> Path:
    """Fill `folder` with a base: PROGRAMS and `more` programs in /bin, two users, and a home directory of one."""
    for name in ("bin", "etc", "root", "tmp", "home/tester"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    for name in (*(name for name in PROGRAMS if bash or name != "bash"), "sh", *more):
        _copy_program(folder, name)
    (folder / "etc/passwd").write_text(PASSWD)
    (folder / "etc/group").write_text(GROUP)
    (folder / "etc/marker").write_text("the small base\n")
    shutil.chown(folder / "home/tester", 4321, 4322)
    return folder


def picture(folder: Path) -> list[tuple[str, int, int, int]]:
    """Return the path, size, mode and modification time of every file in the base."""
    facts = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), found.st_size, found.st_mode, found.st_mtime_ns) for path, found in facts]


def _copy_program(folder: Path, name: str) -> None:
    program = shutil.which(name)
    assert program, f"this machine has no {name}"
    shutil.copy2(Path(program).resolve(), folder / "bin" / Path(name).name)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/") and not (folder / word.lstrip("/")).exists():
            target = folder / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(word).resolve(), target)
