"""`waypoint diff`, `apply` and `cp`, beside find(1) and cp(1) of the same files."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.frame import Figure, Sizes, at_most, ms_of_command, times_floor_at_most
from tests.homes import Home, open_home
from tests.places import make_temp_root

_FILL = """import os
for folder in range({folders}):
    os.makedirs(f"{place}/d{{folder}}")
    for name in range(100):
        with open(f"{place}/d{{folder}}/f{{name}}", "w") as file:
            file.write("content\\n")
"""


@contextlib.contextmanager
def figures(sizes: Sizes) -> Iterator[list[Figure]]:
    few, many, large = (200, 1000, 1 << 20) if sizes.quick else (10_000, 100_000, 1 << 30)
    with (
        open_home("bench", None if sizes.quick else make_temp_root()) as home,
        tempfile.TemporaryDirectory(prefix="waypoint-bench-", dir="/srv") as folder,
    ):
        home.must("shell", "main", "-d")
        _fill(home, f"{folder}/few", few)
        home.must("fork", "main", "large")
        _fill(home, f"{folder}/many", many, "large")
        home.must("checkpoint", "before", "-b", "large")
        home.must("exec", "-b", "large", "--", f"for i in $(seq 10); do echo x > {folder}/many/d0/f$i; done")
        home.must("checkpoint", "after", "-b", "large")
        home.must("exec", "--", f"head -c {large} /dev/urandom > {folder}/large")
        home.must("cp", f"main:{folder}/few", f"{folder}/few-to-copy")
        home.must("cp", f"main:{folder}/large", f"{folder}/large-to-copy")
        for number in range(30):
            home.must("exec", "-b", "large", "--", f"echo {number} > {folder}/many/d0/f0")
            home.must("checkpoint", f"large-{number}", "-b", "large")
        copy = Path(folder, "copy")
        yield [
            Figure(
                name=f"diff --stat of {few} changes",
                unit="ms",
                measure=lambda: ms_of_command(home.argv("diff", "main", "--", f"{folder}/few"), home.env),
                floor=lambda: _ms_in_session(home, "find", f"{folder}/few", "-printf", "%s %p\\n"),
                floor_name="find in the session",
                aim=at_most(300, "ms"),
            ),
            Figure(
                name=f"diff --stat of 10 changes in an upper of {many} files",
                unit="ms",
                measure=lambda: ms_of_command(home.argv("diff", "before", "after"), home.env),
                aim=at_most(100, "ms"),
                max_runs=5,
            ),
            Figure(
                name=f"du of 30 captures of {many} files",
                unit="ms",
                measure=lambda: ms_of_command(home.argv("du"), home.env),
                floor=lambda: _ms_in_session(home, "du", "-s", f"{folder}/many", branch="large"),
                floor_name="du(1) of one of them",
                aim=at_most(2000, "ms"),
                max_runs=5,
            ),
            Figure(
                name=f"restore --only files of 10 changes among {many} files",
                unit="ms",
                measure=lambda: ms_of_command(
                    home.argv("restore", "after", "-b", "large", "--only", "files"), home.env
                ),
                floor=lambda: _ms_on_large(home, f"mkdir -p /srv/ten; cp -a {folder}/many/d1/f? /srv/ten"),
                floor_name="cp -a of 10 files in the session",
                aim=at_most(150, "ms"),
                before=lambda: _change_ten(home, f"{folder}/many/d0"),
                max_runs=5,
            ),
            Figure(
                name=f"pause of a restore --only files of 10 changes among {many} files",
                unit="ms",
                measure=lambda: _paused_ms(home, "after"),
                aim=at_most(50, "ms"),
                before=lambda: _change_ten(home, f"{folder}/many/d0"),
                max_runs=5,
            ),
            Figure(
                name=f"pause of a restore --only files of {many} changed files",
                unit="ms",
                measure=lambda: _paused_ms(home, "after"),
                floor=lambda: _ms_on_large(home, f"rm -rf /srv/copy; cp -a {folder}/many /srv/copy"),
                floor_name="cp -a in the session",
                aim=at_most(3000, "ms"),
                before=lambda: _change_all(home, f"{folder}/many"),
                max_runs=2,
            ),
            Figure(
                name=f"restore --only files of 10 changes after {many} files were restored",
                unit="ms",
                measure=lambda: ms_of_command(
                    home.argv("restore", "after", "-b", "large", "--only", "files"), home.env
                ),
                aim=at_most(150, "ms"),
                before=lambda: _change_ten(home, f"{folder}/many/d0"),
                max_runs=5,
            ),
            Figure(
                name=f"apply of {few} small files",
                unit="ms",
                measure=lambda: ms_of_command(home.argv("apply", "main", "--", f"{folder}/few"), home.env),
                floor=lambda: _ms_of_copy(Path(folder, "few-to-copy"), copy),
                floor_name="cp -a",
                aim=times_floor_at_most(1.5),
                before=lambda: _take_back(home, Path(folder, "few")),
                max_runs=5,
            ),
            Figure(
                name=f"cp of {large >> 20} MiB to the machine",
                unit="ms",
                measure=lambda: ms_of_command(home.argv("cp", f"main:{folder}/large", str(copy)), home.env),
                floor=lambda: _ms_of_copy(Path(folder, "large-to-copy"), copy),
                floor_name="cp",
                aim=times_floor_at_most(1.2),
                before=lambda: copy.unlink(missing_ok=True),
                max_runs=5,
            ),
        ]


def _fill(home: Home, place: str, count: int, branch: str = "main") -> None:
    script = _FILL.format(folders=count // 100, place=place)
    home.must("run", "-b", branch, "--", "python3", "-c", script, timeout_s=300)


def _ms_in_session(home: Home, *words: str, branch: str = "main") -> float:
    return ms_of_command(home.argv("run", "-b", branch, "--", *words), home.env)


def _take_back(home: Home, few: Path) -> None:
    if few.exists():
        home.must("undo")


def _ms_of_copy(source: Path, copy: Path) -> float:
    subprocess.run(["rm", "-rf", copy], check=True)
    start = time.monotonic()
    subprocess.run(["cp", "-a", source, copy], check=True)
    return 1000 * (time.monotonic() - start)


def _ms_on_large(home: Home, script: str) -> float:
    return ms_of_command(home.argv("run", "-b", "large", "--", "sh", "-c", script), home.env)


def _change_ten(home: Home, folder: str) -> None:
    home.must("run", "-b", "large", "--", "sh", "-c", f"for i in $(seq 10); do echo y > {folder}/f$i; done")


def _change_all(home: Home, folder: str) -> None:
    change = f"find {folder} -type f | xargs -n 5000 sed -i s/content/changed/"
    home.must("run", "-b", "large", "--", "sh", "-c", change, timeout_s=300)


def _paused_ms(home: Home, name: str) -> float:
    done = home.must("restore", name, "-b", "large", "--only", "files", "--json", timeout_s=300).json()
    return float(done["exchanged"]["paused_ms"])
