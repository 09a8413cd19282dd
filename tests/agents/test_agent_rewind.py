"""Claude Code and Codex with Waypoint's plugin, inside of a session and outside, with a mock model."""

import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.agents.cli_agents import MODELS, Agent, mock_model
from tests.homes import Home
from tests.isolation.outside import public_folder

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "criu", "npm", "agents", "git")]

AGENTS = ("claude", "codex")
PORT = 4020

SERVER = """
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    count = 0
    def handle(self):
        Handler.count += self.rfile.readline() == b"add\\n"
        self.wfile.write(b"%d" % Handler.count)
socketserver.TCPServer(("127.0.0.1", 4021), Handler).serve_forever()
"""
ASK = """
import socket, sys, time
for attempt in range(100):
    try:
        link = socket.create_connection(("127.0.0.1", 4021))
        break
    except OSError:
        time.sleep(0.1)
link.sendall(sys.argv[1].encode() + b"\\n")
print(link.recv(20).decode())
"""
ROWS = """
import sqlite3, sys
base = sqlite3.connect("base.db")
for statement in sys.argv[1:]:
    print(*base.execute(statement))
base.commit()
"""
SCRIPTS = {
    "first.sh": """set -e
echo written by the agent >code.txt
{python} -m pip install -q --no-index --disable-pip-version-check --target lib ../made-1.0-py3-none-any.whl
setsid nohup {python} ../server.py >/dev/null 2>&1 &
{python} ../ask.py add
{python} ../rows.py 'create table rows (name)' 'insert into rows values ("first")'
""",
    "second.sh": "rm code.txt; {python} ../ask.py add; {python} ../rows.py 'insert into rows values (\"second\")'",
    "third.sh": "rm -r lib; {python} ../ask.py add; {python} ../rows.py 'delete from rows'",
    "fourth.sh": "echo other >code.txt; pkill -f ../server.py",
    "state.sh": """cat code.txt; PYTHONPATH=lib {python} -c 'import made; print(made.NAME)'
{python} ../ask.py get; {python} ../rows.py 'select * from rows'
""",
}
STATE = "written by the agent\na package\n1\n('first',)\n"


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, home: Home) -> Iterator[Agent]:
    """An agent with the plugin, and the files that its commands use."""
    with public_folder("agent") as folder:
        made = Agent(request.param, folder / "user", PORT)
        made.make()
        for name, text in {
            "server.py": SERVER,
            "ask.py": ASK,
            "rows.py": ROWS,
            "models.py": MODELS.read_text(),
        }.items():
            (made.folder / name).write_text(text)
        for name, text in SCRIPTS.items():
            (made.folder / name).write_text(text.replace("{python}", sys.executable))
        _make_wheel(made.folder / "made-1.0-py3-none-any.whl")
        home.must("install", made.name, env=made.env)
        yield made
        home.must("uninstall", made.name, env=made.env)


def _make_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("made.py", "NAME = 'a package'\n")
        wheel.writestr("made-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
        wheel.writestr("made-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("made-1.0.dist-info/RECORD", "")


def ask(home: Home, branch: str, agent: Agent, text: str, *, first: bool = False) -> str:
    """Send a prompt to the agent in the session; return what it prints."""
    line = f"{shlex.join(agent.prompt(text, first=first))} </dev/null"
    return home.must("exec", "-b", branch, "--wait-prompt", "60", "--", line).stdout


def state(home: Home, branch: str) -> str:
    return home.must("exec", "-b", branch, "--wait-prompt", "60", "--", "sh ../state.sh 2>&1").stdout


def test_a_rewind_brings_back_files_package_server_rows_and_conversation(home: Home, agent: Agent) -> None:
    exports = "; ".join(f"export {name}={shlex.quote(value)}" for name, value in agent.env.items() if name != "PATH")
    with session(home, "root") as branch:
        path = f"export PATH={shlex.quote(agent.env['PATH'])}:$PATH"
        model = f"{sys.executable} ../models.py {PORT} ../log & until : </dev/tcp/127.0.0.1/{PORT}; do sleep 0.1; done"
        home.must("exec", "-b", branch, "--", f"{exports}; {path}; cd {agent.work}; {model}")
        ask(home, branch, agent, "run sh ../first.sh", first=True)
        assert state(home, branch) == STATE
        for number in ("second", "third", "fourth"):
            ask(home, branch, agent, f"run sh ../{number}.sh")
        assert inside(home, branch, "cat code.txt; echo *") == "other\nbase.db code.txt\n"

        points = home.must("rewind", branch, "--list", "--json").json()
        point = next(one for one in points if one["label"] == "run sh ../second.sh")
        said = home.must("rewind", branch, "-n", str(point["number"]))
        assert said.stdout == "run sh ../second.sh\n"
        assert state(home, branch) == STATE
        assert "ANSWER 2 to hello" in ask(home, branch, agent, "hello")

        tries = home.must("fork", point["capture"], "-n", "3", "--prefix", f"{branch}-try").stdout.split()
        for one in tries:
            ask(home, one, agent, f"run echo by {one} >code.txt")
        best = f"{branch}-best"
        home.must("checkpoint", best, "-b", tries[1])
        home.must("stop", "--discard", *tries)
        home.must("apply", best, "--yes", "--", str(agent.work / "code.txt"))
        assert (agent.work / "code.txt").read_text() == f"by {tries[1]}\n"


def test_commands_of_an_agent_outside_run_in_the_session(home: Home, agent: Agent, tmp_path: Path) -> None:
    branch, env = f"out-{agent.name}", {**home.env, **agent.env}
    with mock_model(PORT, tmp_path / "log"):
        words = agent.prompt("run rm -f nothing; echo made >made.txt", first=True)
        env["WAYPOINT_BRANCH"] = branch
        subprocess.run(words, cwd=agent.work, env=env, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert not (agent.work / "made.txt").exists()
    assert home.must("cat", f"{branch}:{agent.work}/made.txt").stdout == "made\n"
    tree = agent.work.parent / "tree"
    git = ["git", "-C", str(agent.work), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(tree)], check=True)
    with mock_model(PORT, tmp_path / "log"):
        for name in ("one", "two"):
            words = agent.prompt(f"run echo made >>{name}.txt", first=True)
            subprocess.run(words, cwd=tree, env=env, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert home.must("ls", f"{branch}-tree:{tree}").stdout == ".git\none.txt\ntwo.txt\n"
    assert not (tree / "one.txt").exists()
    labels = [one["label"] for one in home.must("rewind", branch, "--list", "--json").json()]
    assert labels == ["rm -f nothing; echo made >made.txt", "run rm -f nothing; echo made >made.txt"]
    home.must("stop", "--discard", branch, f"{branch}-tree")
