"""An ordinary user on a machine where Waypoint was never set up: no root, no CRIU, no control groups."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person, new_person
from tests.acceptance.small_base import make_base
from tests.homes import Home
from tests.processes_now import processes
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]


class Alone:
    """A person whose commands find no home that root has set up."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.home = Home(person.home / ".local/share/waypoint")

    def can(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return self.person.can(self.home, *words, cwd=str(self.person.home), **variables)

    def must(self, *words: str) -> str:
        done = self.can(*words)
        assert done.returncode == 0, f"waypoint {' '.join(words)}: {done.returncode}: {done.stderr}{done.stdout}"
        return done.stdout

    def runs(self, text: str, branch: str = "main") -> str:
        return self.must("exec", "-b", branch, "--", text).strip()

    def processes(self) -> list[int]:
        found = []
        for one in processes():
            with contextlib.suppress(OSError):  # it has just ended
                if os.stat(one.folder).st_uid == self.person.uid:
                    found.append(one.pid)
        return found

    def log(self) -> str:
        return (self.home.path / "daemon.log").read_text()


@pytest.fixture
def alone() -> Iterator[Alone]:
    with new_person("alone", "/bin/bash") as person:
        made = Alone(person)
        (person.home / "kept").write_text("machine\n")
        os.chown(person.home / "kept", person.uid, person.gid)
        try:
            yield made
        finally:
            made.can("stop", "--all", "--discard")
            made.can("daemon", "stop")
            for pid in made.processes():
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["rm", "-rf", f"/tmp/waypoint-{person.uid}"], check=True)


def test_a_user_without_root_has_all_verbs_at_the_tier_respawn(alone: Alone) -> None:
    first = alone.can("shell", "-d")
    assert (first.returncode, first.stdout) == (0, "main\n"), first.stderr + alone.log()
    assert first.stderr.count("\n") == 1
    assert "works without root" in first.stderr
    alone.runs("cd /tmp; export KEPT=1; say() { echo said; }; sleep 1234 &")
    alone.runs("echo session >~/kept; rm ~/.profile; mkdir ~/new; echo t >/tmp/of-alone; echo v >/var/tmp/of-alone")
    assert alone.runs("id -un; id -u") == f"{alone.person.name}\n{alone.person.uid}"
    found = json.loads(alone.must("checkpoint", "one", "--json"))
    assert (found["tier"], [one["code"] for one in found["degraded"]]) == ("respawn", ["no-processes"])
    assert found["degraded"][0]["subject"] == "no-root"
    alone.runs("rm -r ~/new; echo later >~/kept; unset KEPT; cd /")
    assert "sleep 1234" in alone.can("restore", "one").stderr
    state = (
        "cat ~/kept; test -d ~/new && echo new; echo $KEPT; say; pwd; jobs | grep -c sleep; cat /tmp/of-* /var/tmp/of-*"
    )
    home = alone.person.home
    assert alone.runs(state) == "session\nnew\n1\nsaid\n/tmp\n1\nt\nv"
    alone.must("undo", "-b", "main")
    assert alone.runs("cat ~/kept; pwd; echo .$KEPT") == "later\n/\n."
    assert alone.must("fork", "one", "two", "three").split() == ["two", "three"]
    assert alone.runs(state, "three") == "session\nnew\n1\nsaid\n/tmp\n1\nt\nv"
    assert {one["branch"] for one in json.loads(alone.must("ps", "--json"))} == {"main", "two", "three"}
    assert alone.must("run", "-b", "two", "--", "cat", f"{home}/kept") == "session\n"
    assert alone.must("cat", f"one:{home}/kept") == "session\n"
    for words in (("apply", "one"), ("mount", "one", str(home)), ("shell", "-d", "others", "--user", "root")):
        refused = alone.can(*words)
        assert (refused.returncode, "works without root" in refused.stderr) == (3, True), words
    changed = {tuple(line.split()[:2]) for line in alone.must("diff", "three").splitlines()[:-1]}
    assert changed == {
        ("M", f"{home}/kept"),
        ("D", f"{home}/.profile"),
        ("A", f"{home}/new/"),
        ("A", "/tmp/of-alone"),
        ("A", "/var/tmp/of-alone"),
    }
    assert "one" in alone.must("log", "main")
    for pid in alone.processes():
        if b"/daemon/" in Path(f"/proc/{pid}/cmdline").read_bytes():  # the daemon and its supervisor
            os.kill(pid, signal.SIGKILL)
    assert alone.runs(state, "three") == "session\nnew\n1\nsaid\n/tmp\n1\nt\nv"
    alone.must("stop", "two", "three", "--discard")
    alone.must("stop", "main")
    assert alone.can("shell", "-d").returncode == 0
    assert alone.runs("cat ~/kept; pwd") == "later\n/"
    assert (home / "kept").read_text() == "machine\n"
    assert (home / ".profile").exists()
    alone.must("setup", "--remove", "--yes")  # a session runs
    assert alone.can("shell", "-d").returncode == 0
    alone.must("stop", "main")
    alone.must("setup", "--remove", "--yes")  # its daemon runs, but no session
    wait_until(lambda: not alone.processes(), "no process is left")
    tops = (str(home / ".local/share"), "/tmp", "/var/tmp", "/dev/shm", "/run")
    assert [entry.path for top in tops for entry in os.scandir(top) if is_of(entry, alone.person)] == []
    assert f"waypoint-{alone.person.uid}" not in Path("/proc/self/mountinfo").read_text()


def is_of(entry: "os.DirEntry[str]", person: Person) -> bool:
    return entry.stat(follow_symlinks=False).st_uid == person.uid


WITHOUT_NAMESPACES = """
import ctypes, os, sys
uid, home, *command = sys.argv[1:]
parent, child = os.pipe(), os.pipe()
if (pid := os.fork()) == 0:
    assert ctypes.CDLL(None).unshare(0x10000000) == 0
    os.write(parent[1], b".")
    os.read(child[0], 1)
    os.setgid(0)
    os.setuid(0)
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    os.chdir(home)
    os.execv(command[0], command)
os.read(parent[0], 1)
for name in ("uid_map", "gid_map"):
    open(f"/proc/{pid}/{name}", "w").write("0 0 65536")
os.write(child[1], b".")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Runs a command as a user on a machine that gives no user namespaces to anybody."""


def test_a_machine_without_user_namespaces_is_named(alone: Alone) -> None:
    words = [sys.executable, "-c", WITHOUT_NAMESPACES, str(alone.person.uid), str(alone.person.home)]
    words += alone.home.argv("shell", "-d", "--json")
    done = subprocess.run(words, env=alone.person.env(alone.home), capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (3, "no-user-namespaces"), done.stderr
    assert "user.max_user_namespaces is 0" in done.stdout
    assert "works without root" not in done.stderr


@pytest.mark.soak(part="matrix")
def test_a_user_without_root_pins_a_base_whose_files_are_the_users_own(alone: Alone) -> None:
    folder = make_base(alone.person.home / "base")
    (folder / "bin/wc").chmod(0o4755)
    alone.must("base", "create", "own", "--from", str(folder))
    (folder / "etc/marker").write_text("changed\n")
    alone.must("shell", "-d", "--base", "own")
    assert alone.runs("cat /etc/marker; stat -c '%u %a' /bin/wc") == f"the small base\n{alone.person.uid} 755"
    alone.runs("mv /etc/marker /etc/moved")
    alone.must("checkpoint", "c")
    alone.must("fork", "c", "copy")
    assert alone.runs("cat /etc/moved", "copy") == "the small base"
