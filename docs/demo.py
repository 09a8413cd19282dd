"""`sudo ./dev demo`: a real session from start to end in a temporary home. Prints what it really did.

Exits with 1 if a command did not do what the demo says.
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
DELETED_FILE = "/etc/debian_version"

SERVE = """\
#!/usr/bin/env python3
import http.server

count = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"request {count}, work.txt contains: {open('work.txt').read()}".encode())

    def log_message(self, *_):
        pass


http.server.HTTPServer(("", 80), Handler).serve_forever()
"""
FETCH = """\
#!/usr/bin/env python3
import time, urllib.request

for attempt in range(100):  # the server may not listen yet
    try:
        print(urllib.request.urlopen("http://127.0.0.1").read().decode(), end="")
        break
    except OSError:
        time.sleep(0.1)
"""


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

    def show(self, *args: str, note: str = "", code: int = 0, stdin: str = "") -> str:
        """Run and print one command; any other exit status than `code` ends the demo. `note`: a comment behind it."""
        command = "$ waypoint " + " ".join(_quoted(arg) for arg in args)
        print(f"{command}   # {note}" if note else command, flush=True)
        begin = time.perf_counter()
        done = subprocess.run(
            [*WAYPOINT, *args], env=self.env, input=stdin, capture_output=True, text=True, check=False
        )
        taken_ms = 1000 * (time.perf_counter() - begin)
        if text := (done.stdout + done.stderr).rstrip("\n"):
            print(text)
        print(
            f"   (exit status {done.returncode}, {taken_ms:.0f} ms)" if code else f"   ({taken_ms:.0f} ms)", flush=True
        )
        if done.returncode != code:
            raise SystemExit(f"demo: expected exit status {code}, got {done.returncode}")
        return done.stdout

    def exec(self, text: str, branch: str = "demo", note: str = "", code: int = 0) -> str:
        return self.show("exec", "-b", branch, "--", text, note=note, code=code)

    def put(self, path: str, content: str) -> None:
        command = f"cat >{path} && chmod 755 {path}"
        self.show(
            "run", "-i", "-b", "demo", "--", "sh", "-c", command, note=f"stdin: {Path(path).name}.py", stdin=content
        )


def _quoted(arg: str) -> str:
    if arg.replace("-", "").replace("/", "").isalnum() or arg == "--":
        return arg
    return f"'{arg}'" if "'" not in arg else f'"{arg}"'


def demonstrate(demo: Demo) -> None:
    start(demo)
    demo.say("Checkpoint: this state gets the name `warm`. The session continues.")
    demo.show("checkpoint", "warm", "-b", "demo", note="prints name, id, tier (`live`: with processes), pause")
    demo.show("run", "-b", "demo", "--", "fetch")

    restore(demo)
    try_fixes(demo)

    demo.say("A person attaches to the session's terminal, and sees what an agent runs there.")
    attach_and_exec(demo)

    demo.say("The daemon is killed. The session does not notice, and the next command works.")
    facts = subprocess.run([*WAYPOINT, "daemon", "status", "--json"], env=demo.env, capture_output=True, check=True)
    daemon = json.loads(facts.stdout)["pid"]
    print(f"$ kill -9 {daemon}   # the daemon")
    os.kill(daemon, signal.SIGKILL)
    demo.exec("greet")

    demo.say("The sessions end and their files are kept. The machine is as it was.")
    demo.show("stop", "--all")
    for path in (DELETED_FILE, "/usr/share/doc"):
        if not Path(path).exists():
            raise SystemExit(f"demo: the machine lost {path}")
        print(f"on the machine: {path} still exists")


def start(demo: Demo) -> None:
    demo.say("A session starts. It sees all files of this machine; its changes go to a copy.")
    demo.show("shell", "-d", "demo", note="-d: do not attach; prints the branch")
    demo.say("Two small scripts go into the session: `serve` counts requests in its memory, `fetch` makes one.")
    demo.put("/usr/local/bin/serve", SERVE)
    demo.put("/usr/local/bin/fetch", FETCH)
    demo.say("The session gets a folder, a variable, a function, changed files and a running web server.")
    demo.exec("cd /srv && export GREETING=hello && greet() { echo $GREETING from $PWD; }")
    demo.exec(f"rm {DELETED_FILE}; echo 'precious work' >work.txt; echo 'print(1/0)' >app.py")
    demo.exec("serve &", note="on port 80 of the session's own network")
    for _ in range(3):
        demo.show("run", "-b", "demo", "--", "fetch")


def restore(demo: Demo) -> None:
    demo.say("A disaster: the work is deleted, the server is killed, the variable is lost.")
    demo.exec("rm -rf /srv/* /usr/share/doc; kill %1; unset GREETING; cd /")
    demo.say(
        "Restore: files, shell and the server with its memory are back. It had counted 3 requests at the checkpoint."
    )
    demo.show("restore", "warm", "-b", "demo")
    said = demo.exec("greet; cat work.txt; jobs")
    fetched = demo.show("run", "-b", "demo", "--", "fetch", note="request 4 again")
    if not said.startswith("hello from /srv\nprecious work\n") or not fetched.startswith("request 4,"):
        raise SystemExit("demo: the session is not as it was at the checkpoint")
    demo.say("The log of operations shows what an undo of each operation would do.")
    demo.show("op", "log", "-n", "3")


def try_fixes(demo: Demo) -> None:
    demo.say("Fork: three fixes of app.py side by side, each in its own copy of everything, with its own port 80.")
    demo.show("fork", "warm", "fix-1", "fix-2", "fix-3")
    for branch, text, code in (("fix-1", "print(1/1", 1), ("fix-2", "print(1//0)", 1), ("fix-3", "print(0/1)", 0)):
        demo.exec(f"echo '{text}' >app.py && python3 app.py", branch, code=code)
    demo.show("run", "-b", "fix-3", "--", "fetch", note="each copy has its own server, which continues to count")
    demo.say("The fix that works gets a name, the others are discarded.")
    demo.show("checkpoint", "fixed", "-b", "fix-3")
    demo.show("stop", "fix-1", "fix-2", "--discard")
    demo.show("ps")
    demo.show("log", "demo", "--graph", "--all")


def attach_and_exec(demo: Demo) -> None:
    print("$ waypoint attach demo   # on a second terminal")
    person = pexpect.spawn(
        WAYPOINT[0], [*WAYPOINT[1:], "attach", "demo"], env=demo.env, encoding="utf-8", dimensions=(24, 80)
    )
    person.expect("srv#|srv\\$")
    demo.exec("echo the agent says hello", note="on the first terminal")
    person.expect("the agent says hello\r\n")
    print("   the second terminal showed: the agent says hello")
    person.send("\x1dd")  # Ctrl-] d
    person.expect(pexpect.EOF)
    person.close()
    print("   Ctrl-] d on the second terminal left the session running")


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
        demo.say("Set-up: a home for sessions, in a temporary folder.")
        demo.show("setup")
        try:
            demonstrate(demo)
        finally:
            demo.say("Everything is removed: sessions, daemon, home.")
            demo.show("stop", "--all", "--discard")
            demo.show("setup", "--remove", "--yes")
    if mounts_of_the_machine() != before:
        raise SystemExit("demo: it left mounts behind")
    print("\nNothing of the demo is left on this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
