"""A command that replaces the session's shell by another one (`exec bash`) leaves a session that takes commands."""

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import session
from tests.collecting import collecting
from tests.homes import Home

pytestmark = pytest.mark.privileged

LEFT = "$(env | grep -c -e WAYPOINT_AGAIN -e PROMPT_COMMAND -e ZDOTDIR)"  # variables that load the hooks
STATE = f'echo "$$ $MINE $PAGER ${{BASH_VERSION:+bash}}${{ZSH_VERSION:+zsh}} {LEFT}"'


def test_a_command_that_replaces_the_shell_leaves_a_session_that_takes_commands(home: Home, person: Person) -> None:
    with collecting() as row:
        for shell, commands in (
            ("bash", {"exec bash": "bash", "exec $SHELL -l": "bash", 'true && exec "/usr/bin/zsh" -i;': "zsh"}),
            ("zsh", {"exec zsh": "zsh", "exec -l $SHELL": "zsh", "exec bash": "bash"}),
        ):
            with session(home, person.name, "--shell", shell) as branch:
                start = home.must("exec", "-b", branch, "--", "export MINE=1; sleep 1000 & echo $$").stdout.split()[-1]
                for command, kind in commands.items():
                    with row(f"{shell}: {command}"):
                        done = home.must("exec", "-b", branch, "--json", "--", f"echo before; {command}").json()
                        assert (done["exit"], done["ended"], done["output"]) == (0, False, "before\n")
                        found = home.must("exec", "-b", branch, "--", STATE).stdout
                        assert found == f"{start} 1 cat {kind} 0\n"
                        assert (
                            home.must("exec", "-b", branch, "--", "cat; (exec sh); pgrep -c -P $$ sleep").stdout
                            == "1\n"
                        )
