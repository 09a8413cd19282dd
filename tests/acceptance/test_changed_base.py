"""Captures of sessions whose base has changed since, as an upgrade of the machine changes it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.small_base import make_base
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.places import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

PYTHON = "/usr/bin/python3"
LEFT_OUT = ("test", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "lib2to3")
COUNTER = """
import time
lines = open("/etc/marker")
lines.read(4)
n = 0
while True:
    n += 1
    with open("/tmp/n", "w") as file:
        file.write(f"{n} {lines.read()}")
    lines.seek(4)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def own_home() -> Iterator[Home]:
    with open_home() as home:
        yield home


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    folder.chmod(0o755)
    make_base(folder, PYTHON)
    ask = [PYTHON, "-c", "import os; print(os.path.dirname(os.__file__))"]
    library = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copytree(library, folder / library[1:], ignore=shutil.ignore_patterns(*LEFT_OUT, "config-*"))
    return folder


def count(home: Home, branch: str) -> tuple[int, str]:
    """The number that the counting program of the session has reached, and what it reads of /etc/marker."""

    def read() -> tuple[int, str]:
        found = inside(home, branch, "cat /tmp/n 2>/dev/null || :").split(maxsplit=1)
        return (int(found[0]), found[1].strip()) if len(found) == 2 else (0, "")

    before = read()[0]
    wait_until(lambda: read()[0] > before, "the program goes on")
    return read()


def replace(path: Path, content: bytes) -> None:
    """As dpkg does it."""
    (path.parent / "new").write_bytes(content)
    os.rename(path.parent / "new", path)


def contents_of(home: Home, capture: str) -> set[str]:
    """The names in the folder for files of the base of a capture that is not only in the store."""
    return set(os.listdir(home.path / "hot" / capture / "base")) - {"files.json"}


def listed_contents(home: Home, capture: str) -> set[str]:
    listing = json.loads((home.path / "hot" / capture / "base/files.json").read_text())
    return {file["content"] for file in listing["files"]}


def changes(home: Home, branch: str, *below: str) -> list[str]:
    return [one["name"] for one in home.must("diff", branch, "--json", "--", *below).json()["files"]]


def test_processes_continue_on_a_changed_base(own_home: Home, base: Path) -> None:
    home = own_home
    home.must("shell", "-d", "counts", "--base", str(base), "--user", "root")
    inside(home, "counts", f"cat >/root/count.py <<'END'\n{COUNTER}END")
    inside(home, "counts", "X=before; python3 /root/count.py >/dev/null 2>&1 &")
    reached, read = count(home, "counts")
    assert read == "small base"
    old = home.must("checkpoint", "old", "-b", "counts", "--wait", "--json").json()
    assert unusual(old["degraded"]) == []
    home.must("checkpoint", "kept", "-b", "counts")
    home.must("stop", "--files", "counts")
    home.must("evict", "old")
    made = home.must("restore", "old", "--new", "same", "--tier", "live", "--json").json()
    assert unusual(made["degraded"]) == []
    assert contents_of(home, old["capture"]) == set()  # the machine has them
    home.must("stop", "same", "--discard")

    changed = [base / "bin/bash", base / "bin/python3", *base.rglob("libc.so.6"), base / "etc/marker"]
    for file in changed:
        replace(file, b"of a later version\n")
    for name, branch in (("old", "completed"), ("kept", "hot"), ("old", "stored")):
        if branch == "stored":
            home.must("evict", "old")
        made = home.must("restore", name, "--new", branch, "--tier", "live", "--json").json()
        (condition,) = unusual(made["degraded"])
        assert condition["code"] == "base-files-changed"
        assert condition["subject"].startswith("/bin/bash, /bin/python3, ")
        there, read = count(home, branch)
        assert (there > reached, read) == (True, "small base")
        assert inside(home, branch, "echo $X; cat /etc/marker") == "before\nthe small base\n"
        inside(home, branch, "echo mine >/etc/own")
        assert changes(home, branch, "/etc", "/bin") == ["/etc/own"]
        if branch == "hot":
            home.must("fork", branch, "copy")
            assert count(home, "copy")[0] > there
            inside(home, "copy", "echo also >>/etc/marker")
            assert changes(home, "copy", "/etc") == ["/etc/marker", "/etc/own"]
        home.must("stop", "--files", "--all")
    assert len(contents_of(home, old["capture"])) == len(changed)
    home.must("layer", "attach", "old", f"note={base}/etc/passwd")
    copy = home.must("show", "old", "--json").json()["capture"]
    assert contents_of(home, copy) == listed_contents(home, copy)
    assert {file.read_bytes() for file in changed} == {b"of a later version\n"}
    assert home.must("verify", "--read-data").stdout.startswith("no damage")


def test_a_capture_without_these_files_or_with_hostile_ones_is_refused(own_home: Home, base: Path) -> None:
    home = own_home
    folder = home.path / "hot" / home.must("show", "old", "--json").json()["capture"] / "base"
    listing = json.loads((folder / "files.json").read_text())
    first = next(file for file in listing["files"] if file["path"] == "/bin/bash")
    outside = base.parent / "outside"
    outside.write_text("a secret")
    content = folder / first["content"]
    os.link(content, folder / "kept")

    def restore() -> tuple[int, str]:
        done = home.cli("restore", "old", "--new", "refused", "--tier", "live", "--json")
        return done.code, done.json()["error"]["code"]

    hostile: list[dict[str, object]] = [
        {"path": "/../outside"},
        {"path": "/tmp/../../outside"},
        {"path": "outside"},
        {"path": "//outside"},
        {"content": "../programs.json"},
        {"mode": 0o104755},
        {"size": first["size"] + 1},
    ]
    for change in hostile:
        (folder / "files.json").write_text(json.dumps({**listing, "files": [{**first, **change}]}))
        assert restore() == (10, "store-damaged"), change
    (folder / "files.json").write_text(json.dumps(listing))
    for make in (lambda: content.symlink_to(outside), lambda: os.mkfifo(content), lambda: os.mknod(content, 0o20600)):
        content.unlink()
        make()
        assert restore() == (10, "store-damaged")
    content.unlink()
    shutil.move(folder / "kept", content)
    shutil.move(folder, folder.parent / "away")
    assert restore() == (5, "criu-program-changed")
    shutil.move(folder.parent / "away", folder)
    home.must("restore", "old", "--new", "accepted", "--tier", "live")
    home.must("stop", "--files", "--all")


def test_contents_are_on_disk_once_and_go_with_the_last_capture(own_home: Home) -> None:
    home = own_home
    home.must("shell", "-d", "on-the-machine")
    home.must("exec", "-b", "on-the-machine", "--", "exec 5</proc/self/statm")  # no file of the base
    home.must("checkpoint", "first", "-b", "on-the-machine")
    home.must("checkpoint", "second", "-b", "on-the-machine", "--anew", "--wait")  # so that both have their files
    contents = home.path / "hot/.base"
    capture = home.must("show", "second", "--json").json()["capture"]
    listing = json.loads((home.path / "hot" / capture / "base/files.json").read_text())
    assert {file["path"] for file in listing["files"]} >= {str(Path("/bin/bash").resolve())}
    assert listing["left_out"] == {}
    mine = {file["content"] for file in listing["files"] if not file["path"].startswith("/.waypoint/")}
    assert {(contents / content).stat().st_nlink for content in mine} == {3}
    home.must("stop", "--files", "--all")
    home.must("rm", "first", "second", "on-the-machine")
    home.must("gc", "--keep-operations", "0s")
    assert not mine & {path.name for path in contents.iterdir()}


def test_a_capture_without_files_of_the_base_says_so(own_home: Home) -> None:
    home = own_home
    contents = home.path / "hot/.base"
    contents.rename(contents.parent / ".away")
    contents.write_text("no folder")
    home.must("shell", "-d", "bare")
    made = home.must("checkpoint", "bare-one", "-b", "bare", "--wait", "--json").json()
    assert [one["code"] for one in unusual(made["degraded"])] == ["base-files-not-kept"]
    assert home.must("show", "bare-one", "--json").json()["degraded"] == made["degraded"]
    contents.unlink()
    (contents.parent / ".away").rename(contents)
    home.must("restore", "bare-one", "--new", "bare-two", "--tier", "live")
    home.must("stop", "--all", "--discard")


def test_an_upgrade_of_waypoint_changes_the_script_of_pid_1(own_home: Home, tmp_path: Path) -> None:
    home = own_home
    home.must("shell", "-d", "upgraded")
    inside(home, "upgraded", "X=before")
    home.must("checkpoint", "older", "-b", "upgraded")
    home.must("stop", "--files", "upgraded")
    home.must("daemon", "stop")
    for name in ("waypoint", "shellwrap", "criu_profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    script = tmp_path / "shellwrap/first.sh"
    script.write_text("#!/bin/sh\n# A later version.\n" + script.read_text())

    def upgraded(*args: str) -> str:
        command = [sys.executable, "-I", "-S", str(tmp_path / "waypoint/cli/main.py"), *args]
        return subprocess.run(command, env=home.env, capture_output=True, text=True, check=True).stdout

    made = json.loads(upgraded("restore", "older", "--new", "continued", "--tier", "live", "--json"))
    assert unusual(made["degraded"]) == []
    assert upgraded("exec", "-b", "continued", "echo $X; wc -l </.waypoint/first.sh").split() == [
        "before",
        str(len((ROOT / "shellwrap/first.sh").read_text().splitlines())),
    ]
    upgraded("checkpoint", "again", "-b", "continued")
    upgraded("stop", "--files", "continued")
    upgraded("restore", "again", "--new", "started", "--tier", "respawn")
    lines = upgraded("exec", "-b", "started", "wc -l </.waypoint/first.sh")
    assert int(lines) == len(script.read_text().splitlines())
    upgraded("stop", "--all", "--discard")
    upgraded("daemon", "stop")
