"""What one exec leaves in the session's shell is there for the next, for any user and in bash as in zsh."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.sessions import session
from tests.homes import Completed, Home
from tests.waiting import PATIENCE_S
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("zsh")]


@dataclass(frozen=True, slots=True)
class Shell:
    """A live session and what its shell is."""

    home: Home
    branch: str
    user: str
    is_zsh: bool

    def exec(self, *words: str, stdin: bytes | None = None) -> Completed:
        return self.home.cli("exec", "-b", self.branch, *words, stdin=stdin)

    def says(self, text: str) -> str:
        """What a command that succeeds prints."""
        done = self.exec("--", text)
        assert done.code == 0, f"{text}: exit {done.code}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(params=["root", "person", "zsh_person"])
def shell(home: Home, request: pytest.FixtureRequest) -> Iterator[Shell]:
    user = "root" if request.param == "root" else request.getfixturevalue(request.param).name
    with session(home, user, "--cwd", "/tmp") as branch:
        yield Shell(home, branch, user, request.param == "zsh_person")


def test_it_is_the_users_own_shell(shell: Shell) -> None:
    assert shell.says("id -un") == f"{shell.user}\n"
    kind = "zsh" if shell.is_zsh else "bash"
    assert shell.says("echo ${ZSH_VERSION:+zsh}${BASH_VERSION:+bash} $SHELL") == f"{kind} /bin/{kind}\n"
    assert "i" in shell.says("echo $-")
    assert shell.says("[ -t 1 ] && [ -t 2 ] && echo on a terminal; tty </dev/tty") == "on a terminal\n/dev/tty\n"


def test_the_folder_and_the_one_before_it(shell: Shell) -> None:
    shell.says("mkdir -p '/tmp/a b/c'; cd '/tmp/a b/c'")
    assert shell.says("pwd; cd .. && pwd") == "/tmp/a b/c\n/tmp/a b\n"
    shell.says("cd /usr; pushd /etc >/dev/null")
    assert shell.says("pwd; popd >/dev/null; pwd; cd - >/dev/null; pwd").splitlines()[:2] == ["/etc", "/usr"]
    shell.says("cd '/tmp/a b/c'; rmdir '/tmp/a b/c'")
    assert shell.says("echo still here; cd /tmp") == "still here\n"


def test_variables_that_are_exported_and_that_are_not(shell: Shell) -> None:
    shell.says("mine='  two  words\n'; export YOURS=yes; readonly fixed=1")
    assert (
        shell.says('printf "%s|" "$mine" "$YOURS" "$fixed"; env | grep -c -e ^mine= -e ^YOURS=')
        == "  two  words\n|yes|1|1\n"
    )
    shell.says("unset mine YOURS")
    assert shell.says("echo ${mine-none} ${YOURS-none}") == "none none\n"
    assert shell.exec("--", "fixed=2").code == 1
    assert shell.says("echo $fixed") == "1\n"


def test_lists_and_maps(shell: Shell) -> None:
    shell.says("list=(one 'two words' '' four); typeset -A map; map[key]='a value'; map[other]=2")
    assert shell.says('echo ${#list[@]}; printf "<%s>" "${list[@]}"') == "4\n<one><two words><><four>"
    shell.says("list+=(five)")
    assert shell.says('echo ${#list[@]} ${#map[@]} "${map[key]}" "${map[other]}"') == "5 2 a value 2\n"


def test_functions_and_aliases(shell: Shell) -> None:
    shell.says("greet() {\n  local who=${1:-world}\n  echo \"hello $who\"\n}\nalias hey='greet alias'")
    assert shell.says("greet; greet me; hey") == "hello world\nhello me\nhello alias\n"
    shell.says("unset -f greet; unalias hey")
    assert shell.exec("--", "greet").code == 127
    assert shell.exec("--", "hey").code == 127


def test_positional_parameters(shell: Shell) -> None:
    shell.says("set -- one 'two words' ''")
    assert shell.says('echo $#; printf "<%s>" "$@"') == "3\n<one><two words><>"
    shell.says("shift")
    assert shell.says('echo $# "$1"') == "2 two words\n"


def test_options(shell: Shell) -> None:
    shell.says("set -o noclobber; echo one >|kept")
    assert shell.exec("--", "echo two >kept").code == 1
    assert shell.says("set +o noclobber; cat kept") == "one\n"
    shell.says("set -o noglob")
    assert shell.says("echo /*; set +o noglob") == "/*\n"
    if shell.is_zsh:
        shell.says("setopt extended_glob null_glob")
        assert shell.says("echo /tmp/no-such-*; [[ -o extended_glob ]] && echo is set") == "\nis set\n"
    else:
        shell.says("shopt -s nullglob extglob")
        assert shell.says("echo /tmp/no-such-*; shopt extglob") == "\nextglob        \ton\n"
    shell.says("set -u")
    assert shell.exec("--", "echo $never_set").code == 1
    assert shell.says("set +u; echo .$never_set.") == "..\n"


def test_jobs_keep_their_numbers_and_can_be_waited_for(shell: Shell) -> None:
    shell.exec("--", "sleep 1000 & first=$!; sleep 2000 &")
    assert shell.says("kill -0 $! $first && echo both run") == "both run\n"
    # zsh counts what it is in the midst of as jobs too, also in an `eval` that is typed.
    one, two = (3, 4) if shell.is_zsh else (1, 2)
    listed = shell.says("jobs").splitlines()
    assert [re.sub(r"\W+", " ", line).split()[0] for line in listed] == [str(one), str(two)]
    assert ["sleep 1000" in listed[0], "sleep 2000" in listed[1]] == [True, True]
    shell.says(f"kill %{one}")
    assert shell.exec("--", "wait $first").code == 143
    assert "sleep 2000" in shell.says(f"jobs %{two}")
    shell.exec("--", "(exit 9) & wait $!")
    shell.exec("--", "sh -c 'exit 7' & job=$!")
    assert shell.exec("--", "wait $job").code == 7
    shell.exec("--", f"kill %{two}; wait %{two}")
    assert "sleep 2000" not in shell.says("jobs")


def test_a_job_goes_on_while_other_commands_run(shell: Shell) -> None:
    shell.exec("--", "rm -f go; { until [ -e go ]; do sleep 0.02; done; echo was woken >woken; } &")
    assert shell.says("echo meanwhile") == "meanwhile\n"
    shell.says("touch go; wait; true")
    assert shell.says("cat woken") == "was woken\n"


def test_a_stopped_job_can_be_continued(shell: Shell) -> None:
    shell.exec("--", "sh -c 'kill -STOP $$; echo continued >went-on'")
    assert any(word in shell.says("jobs") for word in ("Stopped", "suspended"))
    shell.says("fg >/dev/null; true")
    assert shell.says("cat went-on; jobs") == "continued\n"


def test_traps(shell: Shell) -> None:
    shell.says("trap 'echo caught' USR1; trap 'echo goodbye >/tmp/farewell-$BASHPID-$ZSH_VERSION' EXIT")
    assert shell.says("kill -USR1 $$; true") == "caught\n"
    assert "USR1" in shell.says("trap")
    shell.says("trap - USR1")
    assert "USR1" not in shell.says("trap")
    shell.exec("--", "trap 'echo goodbye' EXIT")
    done = shell.exec("--", "exit 3")
    assert (done.code, "goodbye" in done.stdout) == (3, True)


def test_umask_and_limits(shell: Shell) -> None:
    shell.says("umask 027; ulimit -S -n 77; ulimit -c 0")
    assert shell.says("umask; ulimit -S -n; ulimit -c").split() == ["0027" if not shell.is_zsh else "027", "77", "0"]
    shell.says("touch made")
    assert shell.says("stat -c %a made; sh -c 'ulimit -S -n'") == "640\n77\n"


def test_redirections_and_open_files(shell: Shell) -> None:
    shell.says("exec 5>log 6<>both; echo one >&5; echo both >&6")
    shell.says("echo two >&5")
    assert shell.says("cat log both; echo three >&5; exec 5>&-; cat log") == "one\ntwo\nboth\none\ntwo\nthree\n"
    assert shell.exec("--", "echo four >&5").code == 1
    shell.says("printf 'a\nb\nc\n' >lines; exec 7<lines; read -r x <&7")
    assert shell.says("read -r y <&7; echo $x $y") == "a b\n"


def test_a_shell_whose_output_is_redirected_can_be_brought_back(shell: Shell) -> None:
    shell.says("exec 8>&1 >captured")
    assert shell.says("echo into the file") == ""
    shell.says("exec >&8 8>&-")
    assert "into the file\n" in shell.says("cat captured")
    assert shell.says("echo back") == "back\n"


def test_the_status_of_the_command_before(shell: Shell) -> None:
    assert shell.exec("--", "(exit 42)").code == 42
    assert shell.says("echo $?") == "42\n"
    assert shell.says("echo $?") == "0\n"
    assert shell.exec("--", "false").code == 1
    assert shell.exec("--", "[ $? = 1 ]").code == 0
    shell.exec("--", "kill -9 $(sh -c 'echo $PPID' >/dev/null; echo 99999999)")
    assert shell.says("[ $? != 0 ] && echo failed") == "failed\n"


def test_what_is_read_persists(shell: Shell) -> None:
    done = shell.exec("-i", "--", "read -r x; read -r y", stdin=b"first line\nsecond \\ line\nrest\n")
    assert done.code == 0
    assert shell.says('echo "$x|$y"') == "first line|second \\ line\n"


def test_a_coprocess_goes_on(shell: Shell) -> None:
    if shell.is_zsh:
        shell.exec("--", "coproc { while read -r x; do echo got $x; done }")
        assert shell.says("print -p hello; read -p answer; echo $answer") == "got hello\n"
    else:
        shell.exec("--", "coproc { while read -r x; do echo got $x; done; }")
        assert shell.says('echo hello >&${COPROC[1]}; read -r answer <&${COPROC[0]}; echo "$answer"') == "got hello\n"


def test_sourced_files_and_virtual_environments(shell: Shell) -> None:
    place = shell.says("mktemp -d").strip()
    shell.says(f"python3 -m venv --without-pip {place}; . {place}/bin/activate")
    assert shell.says("command -v python; echo $VIRTUAL_ENV") == f"{place}/bin/python\n{place}\n"
    shell.says("deactivate")
    assert shell.says("echo ${VIRTUAL_ENV-none}") == "none\n"


def test_files_and_processes_are_shared_with_run(shell: Shell) -> None:
    shell.exec("--", "echo from exec >shared; sleep 4321 &")
    home, branch = shell.home, shell.branch
    assert home.must("run", "-b", branch, "--", "cat", "/tmp/shared").stdout == "from exec\n"
    home.must("run", "-b", branch, "--", "pkill", "-f", "sleep 4321")
    assert shell.exec("--", "wait $!").code == 143
    assert not Path("/tmp/shared").exists()


def test_a_hundred_commands_leave_nothing_behind(shell: Shell) -> None:
    names = "typeset -p | grep -o '__wp[a-z_]*' | sort -u"
    # The shell itself lists its descriptors: a zsh that starts a program has one more until the program has begun.
    count = f"echo /proc/$$/fd/*; ls -A /run/waypoint >files; wc -w <files; {names}; jobs"
    shell.says("true")
    before = shell.says(count)
    session = Client(shell.home.path).session(shell.branch)
    for number in range(100):
        assert session.exec(f"echo {number}").output == f"{number}\n".encode()
    assert shell.says(count) == before


def test_two_at_once_run_one_after_the_other(shell: Shell) -> None:
    slow = subprocess.Popen(
        shell.home.argv(
            "exec", "-b", shell.branch, "--", "echo begun >begun; until [ -e go ]; do sleep 0.02; done; echo slow"
        ),
        env=shell.home.env,
        stdout=subprocess.PIPE,
    )
    with slow:
        shell.home.must("run", "-b", shell.branch, "sh", "-c", "until [ -e /tmp/begun ]; do sleep 0.02; done")
        quick = subprocess.Popen(
            shell.home.argv("exec", "-b", shell.branch, "--", "ls go; echo quick"),
            env=shell.home.env,
            stdout=subprocess.PIPE,
        )
        with quick:
            with pytest.raises(subprocess.TimeoutExpired):
                quick.wait(0.3)
            shell.home.must("run", "-b", shell.branch, "touch", "/tmp/go")
            assert slow.communicate(timeout=PATIENCE_S)[0] == b"slow\n"
            assert quick.communicate(timeout=PATIENCE_S)[0] == b"go\nquick\n"
