"""What an agent does in a session: `install MIB`, `serve`, `turn NUMBER`. `turn` prints how many bytes it wrote."""

import compileall
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

APP, PACKAGES, PID = Path("/srv/app"), Path("/srv/packages"), Path("/srv/app.pid")
MAX_FILE = 8 << 20
MODULES = 40
HEAP, CHANGED = 8 << 20, 256 << 10


def install(mib: int) -> None:
    """Copy files of the machine to /srv/packages until there are so many MiB, and make a project in /srv/app."""
    left, count, due = mib << 20, 0, time.monotonic()
    for source in _packages():
        if left <= 0:
            break
        place = PACKAGES / str(count // 100_000) / source.relative_to("/")
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)
            left -= source.stat().st_size
            count += 1
        if time.monotonic() >= due:
            due += 0.5
            print(f"{count} files, {left >> 20} MiB are left", flush=True)
    for number in range(MODULES):
        (APP / "lib").mkdir(parents=True, exist_ok=True)
        _write_module(number, 0)
    with contextlib.closing(sqlite3.connect(APP / "work.db")) as database:
        database.execute("CREATE TABLE result (turn INTEGER, name TEXT)")


def _packages() -> Iterator[Path]:
    while True:
        for root in ("/usr/lib/python3", "/usr/lib/python3.11", "/usr/share", "/usr/lib"):
            for folder, _, names in os.walk(root):
                for name in names:
                    path = Path(folder, name)
                    if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_FILE:
                        yield path


def serve() -> None:
    """Have a heap of which each SIGUSR1 changes a part."""
    heap, chosen = bytearray(os.urandom(HEAP)), random.Random(1)

    def change(*_: object) -> None:
        place = chosen.randrange(HEAP - CHANGED)
        heap[place : place + CHANGED] = os.urandom(CHANGED)

    signal.signal(signal.SIGUSR1, change)
    PID.write_text(str(os.getpid()))
    while True:
        signal.pause()


def turn(number: int) -> None:
    """Edit some modules, compile and run them, note the results, and build something each tenth time."""
    chosen, written = random.Random(number), 0
    for one in chosen.sample(range(MODULES), 3):
        written += _write_module(one, number)
    compileall.compile_dir(APP / "lib", quiet=2)
    written += sum(path.stat().st_size for path in (APP / "lib/__pycache__").iterdir() if _is_new(path))
    sys.path.insert(0, str(APP / "lib"))
    results = [__import__(f"module{one}").result() for one in range(MODULES)]
    with contextlib.closing(sqlite3.connect(APP / "work.db")) as database, database:
        database.executemany("INSERT INTO result VALUES (?, ?)", [(number, str(result)) for result in results])
    written += 16384
    if number % 10 == 0:
        (APP / "build").mkdir(exist_ok=True)
        written += (APP / f"build/artifact{number % 50}").write_bytes(os.urandom(2 << 20))
    os.kill(int(PID.read_text()), signal.SIGUSR1)
    print(written + CHANGED)


def _is_new(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < 5


def _write_module(number: int, turn: int) -> int:
    lines = [f"    # line {line} of turn {turn}" for line in range(100 + 20 * number)]
    return (APP / f"lib/module{number}.py").write_text("\n".join(["def result():", *lines, f"    return {turn}\n"]))


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    {"install": install, "serve": serve, "turn": turn}[verb](*map(int, rest))
