"""Runs objects, each in a process of its own: python3 -m tests.differences.run FOLDER NAME..."""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from tests.differences import of_files, of_memory, of_processes, of_refused, of_signals, of_sockets
from tests.differences.objects import OBJECTS, PAUSE, REFUSED

_TRIES = 1500  # 30 s
MODULES = (of_files, of_memory, of_processes, of_refused, of_signals, of_sockets)


def run(folder: Path, name: str) -> None:
    """Make the object, wait for the file `go`, and write what the object then finds."""
    try:
        made = OBJECTS[name]() if name in OBJECTS else REFUSED[name][0]()
        next(made)
        publish(folder / f"{name}.ready", str(os.getpid()))
        while not (folder / "go").exists():
            PAUSE.wait(0.02)
        try:
            next(made)
        except StopIteration as stopped:
            publish(folder / f"{name}.found", repr(stopped.value))
    except BaseException:
        publish(folder / f"{name}.ready", str(os.getpid()))
        publish(folder / f"{name}.found", traceback.format_exc())
    signal.pause()


def publish(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def main(folder: Path, names: list[str]) -> None:
    """Prints nothing. The file `all.ready` has the pids of the objects, `all.found` the results, as JSON. A result that
    is missing is "nothing": the object waits for ever.
    """
    for name in names:
        if os.fork() == 0:
            run(folder, name)
    for kind in ("ready", "found"):
        paths = {name: folder / f"{name}.{kind}" for name in names}
        while kind == "found" and not (folder / "go").exists():
            PAUSE.wait(0.02)
        for _ in range(_TRIES):
            if all(path.exists() for path in paths.values()):
                break
            PAUSE.wait(0.02)
        found = {name: path.read_text() if path.exists() else "nothing" for name, path in paths.items()}
        publish(folder / f"all.{kind}", json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
