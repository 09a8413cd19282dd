"""`waypoint exec` in a session of an ordinary user: output, input, exit codes, arguments, timeouts."""

import base64
import hashlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import session
from tests.collecting import collecting
from tests.homes import Completed, Home
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.privileged

MIB = 1 << 20


@pytest.fixture(scope="module")
def main(home: Home, person: Person) -> Iterator[str]:
    """The session that all tests of this file use one after the other, so each must leave it usable."""
    with session(home, person.name, "--cwd", "/tmp") as name:
        yield name


@pytest.fixture
def run(home: Home, main: str) -> "Exec":
    return Exec(home, main)


class Exec:
    """Calls `waypoint exec` in the session of this file: `run("echo hi")`."""

    def __init__(self, home: Home, branch: str) -> None:
        self.home = home
        self.branch = branch

    def argv(self, *words: str | bytes) -> list[str | bytes]:
        return [*self.home.argv("exec", "-b", self.branch), *words]

    def __call__(self, *words: str, stdin: bytes | None = None) -> Completed:
        dashes = () if "--" in words else ("--",)
        return self.home.cli("exec", "-b", self.branch, *dashes, *words, stdin=stdin)

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start `waypoint exec` in the background, with pipes as stdout and stderr."""
        return subprocess.Popen(self.argv(*words), env=self.home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


OUTPUTS = [
    bytes(range(256)) * 5,
    *(b"", b"no newline", b"\n", b"\n\n\n", b"\r", b"one\r\ntwo\r\n", b"mixed\n\r\n\r", b"\t\x0b\x0c\x08"),
    *(b"\x04\x03\x1a\x1c\x11\x13\x15\x7f\x16", b"trailing blanks   \n   ", b"\xff\xfe\x80\x00\xc3"),
    *("\N{GRINNING FACE} \u4e2d\n".encode(), b"\x1b[31mred\x1b[0m \x1b]0;title\x07"),
]
LIKE_MARKS = [
    *(b"\x1b]7717;E;1;1;0;Z\x07", b"\x1b]7717;S;1;1\x07after", b"\x1b]7717;P;1;1;bash\x07", b"\x1b]7717;E", b"\x1b"),
    b"\x1b]7717;A;1;1;0\x07\x1b]7717;B;1;1;at=0\x07",
    b"\x1b]7717;" + b"x" * 5000,
    b"\x1b]7717;E;1;1;0;Z\x07" * 2000,
]


def test_output_and_input_are_byte_for_byte(run: Exec) -> None:
    with collecting() as row:
        for output in OUTPUTS:
            with row(output[:40]):
                octal = "".join(f"\\{value:03o}" for value in output)
                done = run(f"printf '{octal}'")
                assert (done.raw, done.stderr, done.code) == (output, "", 0)
        for content in (*LIKE_MARKS, b"\x04\x03\x1a", bytes(range(256)), os.urandom(20 * MIB)):
            with row(content[:40]):
                assert run("-i", "--", "cat; echo .", stdin=content).raw == content + b".\n"


def test_a_forged_mark_with_a_wrong_nonce_is_passed_on_as_output(run: Exec) -> None:
    text = r'printf "\033]7717;E;%s;%s;0;Z\007" "$__wp_n" 0123456789abcdef; echo on; (exit 4)'
    done = run(text)
    assert done.code == 4
    assert done.stdout.endswith(";0123456789abcdef;0;Z\x07on\n")


@pytest.mark.soak(part="floods")
def test_a_hundred_megabytes_lose_nothing(run: Exec) -> None:
    program = "import random,sys; r=random.Random(7); n=[r.randbytes(999999) for _ in range(10)]"
    text = f'python3 -c "{program}; [sys.stdout.buffer.write(b) for _ in range(8) for b in n]" | base64 -w 76'
    found, size = hashlib.sha256(), 0
    with run.start("--", text) as command:
        assert command.stdout
        while piece := command.stdout.read(MIB):
            found.update(piece)
            size += len(piece)
    assert command.returncode == 0
    source = random.Random(7)
    expected = base64.b64encode(b"".join(source.randbytes(999_999) for _ in range(10)) * 8)
    lines = b"\n".join(expected[start : start + 76] for start in range(0, len(expected), 76)) + b"\n"
    assert (size, found.digest()) == (len(lines), hashlib.sha256(lines).digest())
    assert size > 100_000_000


def test_output_arrives_while_the_command_runs(run: Exec) -> None:
    with run.start("--", "echo first; read x </tmp/never-there-fifo 2>/dev/null; sleep 1000") as command:
        assert command.stdout
        assert command.stdout.readline() == b"first\n"
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_S) == 143


CODES = [
    *((f"(exit {code})", code) for code in (0, 1, 2, 77, 124, 125, 126, 127, 128, 255)),
    ("false | true", 0),
    ("set -o pipefail; false | true", 1),
    ("set +o pipefail; ! true", 1),
    ("no-such-command-here", 127),
    ("/etc/passwd", 126),
    ("sh -c 'kill -SEGV $$'", 139),
    ("return 3 2>/dev/null; (exit 9)", 9),
    ("sleep 0 & wait", 0),
    ("# only a comment", 0),
]


def test_the_exit_code_is_that_of_the_shell(run: Exec) -> None:
    with collecting() as row:
        for text, code in CODES:
            with row(text):
                assert run(text).code == code
        for text in ("if", 'echo "open', "echo $(", "}", "echo a; )", "echo one\nfi\necho two"):
            with row(text):
                done = run(text)
                assert done.code == 2
                assert "syntax error" in done.stdout or "unexpected" in done.stdout, done
                assert not {"one", "two", "a"} & {*done.stdout.splitlines()}
    assert run("echo usable").stdout == "usable\n"


def test_a_timeout_gives_124_and_leaves_the_shell_usable(run: Exec) -> None:
    done = run("--timeout", "1", "--", "echo begun; sleep 1000; echo never")
    assert (done.code, done.stdout.rstrip()) == (124, "begun")  # bash prints a newline after SIGINT
    assert "1 s, by SIGINT" in done.stderr
    assert run("echo usable; jobs").stdout == "usable\n"


def test_ctrl_c_of_the_client_interrupts_the_command(run: Exec) -> None:
    with run.start("--", "sh -c 'echo begun; exec sleep 1000'; echo never") as command:
        assert command.stdout
        assert command.stdout.readline() == b"begun\n"
        command.send_signal(signal.SIGINT)
        rest, _said = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 130
    assert b"never" not in rest
    assert run("echo usable; jobs").stdout == "usable\n"


def test_a_closed_pipe_of_the_client_ends_the_command(run: Exec) -> None:
    client = " ".join(str(word) for word in run.argv("--", "yes"))
    done = subprocess.run(
        ["bash", "-c", f"{client} | head -c1; echo ${{PIPESTATUS[0]}}"],
        env=run.home.env,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"y141\n", b"")
    assert run("echo usable; pgrep -x yes").stdout == "usable\n"


WORDS = [
    ["a b", "c"],
    ["", "", "x"],
    ["it's", '"quoted"', "`tick`", "$HOME", "$(id)", "\\", "\\n"],
    ["*", "?", "[a-z]", "{1,2}", "~", "!!", "#", "&", ";", "|", ">", "<", "(", ")"],
    ["line\nbreak", "tab\there", " ", "\r\n"],
    ["-n", "--", "--json", "-b"],
    ["=", "a=b", "%1", "^", "@", "x" * 5000],
    [bytes(range(1, 256)).decode(errors="surrogateescape")],
]


def test_arguments_arrive_unchanged(run: Exec) -> None:
    with collecting() as row:
        for words in WORDS:
            with row(words):
                done = run("printf", "%s\\0", *words)
                assert done.stdout.split("\0")[:-1] == words


def test_a_single_argument_is_run_as_shell_text(run: Exec) -> None:
    assert run("echo $((2 + 3)) | cat && echo \"a  b\"; echo 'x' \\\n  y").stdout == "5\na  b\nx y\n"


def test_json_has_the_exit_code_the_output_and_the_reason(run: Exec) -> None:
    done = run("--json", "--", "echo häuser; (exit 3)")
    found = json.loads(done.stdout)
    assert done.code == 3
    assert found.pop("duration_ms") > 0
    told = {name: value for name, value in found.items() if value}
    assert told == {"exit": 3, "by": "command", "output": "häuser\n"}
    found = json.loads(run("--json", "--timeout", "0.2", "--", "sleep 1000").stdout)
    assert (found["exit"], found["by"], found["ended"], found["signal"]) == (124, "waypoint", False, "INT")
    assert found["said"].endswith("by SIGINT")


def test_with_tty_programs_have_a_terminal(run: Exec) -> None:
    assert run("[ -t 0 ] || echo no input; [ -t 1 ] && echo output").stdout == "no input\noutput\n"
    done = run("--tty", "--", "[ -t 0 ] && [ -t 1 ] && echo both; printf 'a\\nb\\n'")
    assert done.stdout == "both\r\na\r\nb\r\n"


@pytest.mark.requires("git", "less")
def test_pagers_do_not_wait_for_keys(run: Exec) -> None:
    run("rm -rf repo; git init -q repo && cd repo && git config user.email a@b && git config user.name n")
    run("for i in $(seq 120); do git commit -q --allow-empty -m 'commit number '$i; done")
    assert run("git log --oneline").stdout.count("commit number") == 120
    assert run("seq 1000 | ${PAGER:-less}").stdout.count("\n") == 1000
    assert run("seq 1000 | ${MANPAGER:-less}").stdout.count("\n") == 1000
    assert run("cd /tmp; echo $PAGER.").stdout == "cat.\n"


@pytest.mark.requires("git")
def test_git_asks_no_questions(run: Exec) -> None:
    ask = r"printf 'protocol=https\nhost=nowhere.invalid\n\n' | git -c credential.helper= credential fill"
    done = run("--timeout", "10", "--", ask)
    assert done.code == 128
    assert "terminal prompts disabled" in done.stdout
