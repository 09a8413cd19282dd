"""`sudo ./dev demo`: a real session, from start to end, in a temporary home. Everything it prints was just done.

Exits with 1 if anything turned out otherwise than it says.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parents[1]
WAYPOINT = [sys.executable, "-I", "-S", str(ROOT / "waypoint/cli/main.py")]
VICTIM = "/etc/debian_version"


class Demo:
    """Runs commands on one home and shows them as a person would type them."""

    def __init__(self, home: Path) -> None:
        self.env = {
            **os.environ,
            "WAYPOINT_HOME": str(home),
            "WAYPOINT_SETUP_ROOT": str(home.parent),
            "TERM": "xterm-256color",
        }
        self.env.pop("SUDO_UID", None)

    def say(self, text: str) -> None:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)

    def show(self, *args: str, code: int = 0) -> str:
        """Run and print one command; anything but exit status `code` ends the demo."""
        print("$ waypoint " + " ".join(_quoted(arg) for arg in args), flush=True)
        begin = time.perf_counter()
        done = subprocess.run(
            [*WAYPOINT, *args], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        taken_ms = 1000 * (time.perf_counter() - begin)
        text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        if text:
            print(text.rstrip("\n"))
        print(f"   [{taken_ms:.0f} ms]", flush=True)
        if done.returncode != code:
            raise SystemExit(f"demo: expected exit status {code}, got {done.returncode}")
        return done.stdout.decode(errors="replace")

    def exec(self, text: str, branch: str = "demo") -> str:
        return self.show("exec", "-b", branch, "--", text)

    def code(self, *args: str) -> int:
        """Run one command, print its last line and its exit status, and return that."""
        done = subprocess.run(
            [*WAYPOINT, *args], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        print("$ waypoint " + " ".join(_quoted(arg) for arg in args))
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        print(f"{lines[-1] if lines else ''}\n   [exit {done.returncode}]", flush=True)
        return done.returncode

    def facts(self, *args: str) -> object:
        return json.loads(subprocess.run([*WAYPOINT, *args], env=self.env, capture_output=True, check=True).stdout)


def _quoted(arg: str) -> str:
    return arg if arg.replace("-", "").replace("/", "").isalnum() else "'" + arg.replace("'", "'\\''") + "'"


def demonstrate(demo: Demo) -> None:
    warm_up(demo)
    demo.say("This moment gets a name. Everything goes on meanwhile.")
    demo.show("checkpoint", "warm", "-b", "demo", "-m", "server up, 3 hits counted")
    demo.exec("hits; jobs")

    disaster(demo)
    try_fixes(demo)

    demo.say("A person attaches to the same terminal and sees what the agent runs there.")
    _attach_and_exec(demo)

    demo.say("The daemon is killed. The session does not notice; the next command simply works.")
    status = demo.facts("daemon", "status", "--json")
    assert isinstance(status, dict)
    print(f"$ kill -9 {status['pid']}")
    os.kill(status["pid"], signal.SIGKILL)
    demo.exec("greet")

    demo.say("What was, and what taking each step back would do.")
    demo.show("log", "demo", "--graph", "--all")
    demo.show("op", "log", "-n", "4")

    demo.say("The sessions end. The machine is as it was, the work is kept.")
    demo.show("stop", "--all")
    for path in (VICTIM, "/usr/share/doc"):
        print(f"on the machine: {path} {'is there' if Path(path).exists() else 'IS GONE'}")
        if not Path(path).exists():
            raise SystemExit("demo: the machine was changed")


def warm_up(demo: Demo) -> None:
    demo.say(
        "A session starts on a copy-on-write view of this machine, and is warmed up: a folder, a variable, a function,"
    )
    demo.say("a web server on port 80 of its own network, a program with a number in its memory, changed files.")
    demo.show("shell", "-d", "demo")
    demo.exec("cd /srv && export GREETING=hello && greet() { echo $GREETING from $PWD; }")
    demo.exec(f"rm -rf {VICTIM}; echo 'precious work' > work.txt; echo 'print(1/0)' > app.py")
    demo.exec("python3 -m http.server 80 >/dev/null 2>&1 &")
    demo.exec(f'mkfifo /tmp/hit /tmp/hits; python3 -c "{_COUNTER}" &')
    demo.exec("hits() { echo >/tmp/hit; cat /tmp/hits; }; hits; hits; hits; greet; jobs")
    demo.exec("for i in $(seq 100); do (exec 9<>/dev/tcp/127.0.0.1/80) 2>/dev/null && break; sleep 0.1; done")
    demo.show("run", "-b", "demo", "--", "python3", "-c", _FETCH)


def disaster(demo: Demo) -> None:
    demo.say("Disaster: the work is deleted, the server killed, the variable gone.")
    demo.exec("rm -rf /srv/* /usr/share/doc; kill %1 %2; unset GREETING; cd /; ls /srv")
    demo.say("Back in place: files, processes with their memory, shell. The count goes on where it was.")
    demo.show("restore", "warm", "-b", "demo")
    said = demo.exec("greet; hits; jobs; cat work.txt")
    if not said.startswith("hello from /srv\n4 hits\n") or "precious work" not in said:
        raise SystemExit("demo: that is not what it was")
    demo.show("run", "-b", "demo", "--", "python3", "-c", _FETCH)


def try_fixes(demo: Demo) -> None:
    demo.say("Three fixes side by side, each in a copy of everything, on the same path and the same port.")
    demo.show("fork", "warm", "fix-1", "fix-2", "fix-3")
    for branch, text in (("fix-1", "print(1/1"), ("fix-2", "print(1//0)"), ("fix-3", "print(0/1)")):
        demo.exec(f"echo '{text}' > app.py", branch=branch)
    scores = [demo.code("exec", "-b", branch, "--", "python3 app.py") for branch in ("fix-1", "fix-2", "fix-3")]
    if [score == 0 for score in scores] != [False, False, True]:
        raise SystemExit(f"demo: the fixes ended with {scores}")
    for branch in ("demo", "fix-3"):
        demo.show("run", "-b", branch, "--", "python3", "-c", _FETCH.replace("work.txt", "app.py"))
    demo.say("The winner gets a name, the others go without a trace.")
    demo.show("checkpoint", "fixed", "-b", "fix-3")
    demo.show("stop", "fix-1", "fix-2", "--discard")
    demo.show("ps")


_FETCH = "import urllib.request as u; print(u.urlopen('http://127.0.0.1/work.txt').read().decode(), end='')"
_COUNTER = "n = 0\nwhile True: open('/tmp/hit').read(); n += 1; open('/tmp/hits', 'w').write(f'{n} hits\\n')"


def _attach_and_exec(demo: Demo) -> None:
    print("$ waypoint attach demo        (on a terminal of its own)")
    person = pexpect.spawn(
        WAYPOINT[0], [*WAYPOINT[1:], "attach", "demo"], env=demo.env, encoding="utf-8", dimensions=(24, 80)
    )
    person.expect("srv#|srv\\$")
    demo.show("exec", "-b", "demo", "--", "echo the agent says hello")
    person.expect("the agent says hello\r\n")
    print("   the person's terminal showed: the agent says hello")
    person.send("\x1dd")  # Ctrl-] d
    person.expect(pexpect.EOF)
    person.close()
    print("   the person pressed Ctrl-] d and is back")


@contextmanager
def temporary_home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="waypoint-demo-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder)


def mounts_of_the_machine() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def main() -> int:
    before = mounts_of_the_machine()
    with temporary_home() as home:
        demo = Demo(home)
        demo.say("A home for sessions, in a temporary folder.")
        demo.show("setup")
        try:
            demonstrate(demo)
        finally:
            demo.say("Everything goes: sessions, daemon, home.")
            demo.show("stop", "--all", "--discard")
            demo.show("setup", "--remove", "--yes")
    if mounts_of_the_machine() != before:
        raise SystemExit("demo: it left mounts behind")
    print("\nNothing of it is left on this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
