"""After a command that ends the shell by accident, the session has a new shell with the old shell's state."""

import asyncio
import os

from tests.collecting import collecting
from tests.session.stage import Stage
from waypoint.capture.layers.shell import last_states
from waypoint.linux.tasks import procfs
from waypoint.model.requests import ExecRequest
from waypoint.terminal.shell.putting_back import Nobody

STATE = "mine='a b'; f() { echo \"f $1\"; }; alias l=ls; cd /usr"
SHOW_STATE = 'echo "$? $mine $(f 1) $PWD $(alias l)"'


async def test_a_command_that_ends_the_shell_leaves_a_new_shell_with_its_state(stage: Stage) -> None:
    with collecting() as row:
        for end in ("cd /nowhere 2>/dev/null || exit 3", "f2() { false || exit 3; }; f2", "(exit 3) || exit"):
            with row(end):
                fresh = await stage.fresh()
                await fresh.exec("setopt nohup nocheckjobs" if stage.shell == "zsh" else "exec 5</etc/passwd")
                await fresh.exec("sleep 1000 & echo $! >job")
                shell = fresh.daemon.line.watch.shell
                ran = await fresh.exec(f"{STATE}; {end}; echo not reached")
                assert (ran.exit, ran.by, ran.ended, fresh.new_shell) == (3, "command", False, True)
                assert b"not reached" not in ran.output
                now = await fresh.exec(SHOW_STATE)
                quote = "'" if stage.shell == "bash" else ""
                assert now.exit == 0, now
                assert now.output.decode() == f"3 a b f 1 /usr {'alias ' if quote else ''}l={quote}ls{quote}\n"
                assert not fresh.new_shell
                new = fresh.daemon.line.watch.shell
                assert shell is not None
                assert new is not None
                assert (new.pid, new.start_ticks) == (
                    shell.pid,
                    shell.start_ticks,
                )  # the process has executed a new shell
                assert int((fresh.home / "job").read_text()) in procfs.children(new.pid)


async def test_a_state_that_is_too_large_is_lost_and_reported(stage: Stage) -> None:
    await stage.open()
    assert (await stage.exec("v=$(head -c 17000000 /dev/zero | tr '\\0' x); false || exit 6")).exit == 6
    assert (stage.new_shell, stage.state_lost) == (True, True)
    assert (await stage.exec("echo ${#v}")).output == b"0\n"
    assert (await stage.exec("v=1; false || exit 6")).exit == 6
    assert (stage.new_shell, stage.state_lost) == (True, False)


async def test_set_e_ends_the_shell_and_is_not_given_to_the_new_one(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("set -eu -o pipefail; mine=1; (exit 7); mine=2")
    assert (ran.exit, ran.ended, bash.new_shell) == (7, False, True)
    ran = await bash.exec('false; echo "$mine $- $SHELLOPTS"')
    assert ran.output.startswith(b"1 himuBHs ")
    assert b"pipefail" in ran.output


async def test_a_trap_that_ends_the_shell_is_not_given_to_the_new_one(stage: Stage) -> None:
    for moment in ("ERR", "DEBUG"):
        fresh = await stage.fresh()
        await fresh.exec("mine=1")
        ran = await fresh.exec(f"trap 'exit 7' {moment}; false")
        assert (ran.exit, ran.ended, fresh.new_shell) == (7, False, True)
        ran = await fresh.exec('false; echo "$mine"')
        assert (ran.exit, ran.ended, ran.output, fresh.new_shell) == (0, False, b"1\n", False)


async def test_a_state_that_ends_the_new_shell_is_given_only_once(bash: Stage) -> None:
    await bash.open()
    line, given = bash.daemon.line, []

    async def renew() -> None:
        request = ExecRequest(text="false || exit 5", tty=True)
        given.append(await line.execute(request, Nobody(), Nobody(), in_turn=True))
        assert len(given) == 1

    line.renew = renew
    assert (await bash.exec("false || exit 3")).exit == 3
    assert (await bash.exec("echo hi")).output == b"hi\n"
    assert [one["exit"] for one in given] == [5]


async def test_an_exit_trap_of_the_user_runs_at_the_end_of_the_session(bash: Stage) -> None:
    await bash.open()
    await bash.exec("trap 'echo bye' EXIT; trap 'echo usr' USR1")
    assert b"bye" not in (await bash.exec("false || exit 3")).output
    assert b"bye" not in (await bash.exec("true")).output
    traps = bash.printed()
    await bash.type(b"trap -p\r")
    await bash.wait_printed(b"'echo usr' SIGUSR1", len(traps))
    assert b"trap -- 'echo bye' EXIT" in bash.printed(len(traps))
    assert b"__wp" not in bash.printed(len(traps))
    ran = await bash.exec("exit 4")
    assert (ran.exit, ran.ended) == (4, True)
    assert b"bye" in ran.output


async def test_after_a_command_the_traps_are_those_of_the_user(bash: Stage) -> None:
    await bash.open()
    for text in ("true", "sleep 100"):  # the second command is interrupted, so the next prompt reports its end
        for own in ("trap - EXIT", "trap 'echo bye' EXIT"):
            await bash.exec(own)
            running, client = await bash.begin(text, programs=None if text == "true" else 1)
            if text != "true":
                client.send("k", b"INT")
            await running
            await bash.daemon.line.wait_idle()
            begun = len(bash.printed())
            await bash.type(b"trap -p; echo e''nd\r")
            await bash.wait_printed(b"end", begun)
            assert b"__wp" not in bash.printed(begun)
            assert (b"echo bye" in bash.printed(begun)) == ("bye" in own)
            found = last_states(lambda name: (bash.run / name).read_bytes())[-1]
            assert found is not None
            assert b"__wp_leave" not in (bash.run / found.file).read_bytes().split(b"\0")[0]


async def test_a_command_with_an_exit_trap_of_its_own_ends_the_session(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("trap 'echo bye' EXIT; false || exit 3")
    assert (ran.exit, ran.ended, bash.new_shell) == (3, True, False)
    assert ran.output == b"exit\nbye\n"


async def test_the_next_command_waits_until_the_new_shell_is_at_its_prompt_with_its_state(bash: Stage) -> None:
    await bash.open()
    await bash.exec("PROMPT_COMMAND[5]='sleep 0.2'")  # the shell needs 0.2 s from the end of a command to its prompt
    await bash.exec("false || exit 3")
    await bash.daemon.line.wait_idle()
    assert [path.name for path in bash.run.iterdir() if path.name.startswith(("cmd.", "req"))] == []
    assert (await bash.exec("echo hi")).output == b"hi\n"


async def test_the_text_of_a_command_is_left_in_no_file_of_the_session(stage: Stage) -> None:
    await stage.open()
    await stage.exec("false || exit 3; : a-secret")
    assert stage.new_shell
    await stage.daemon.line.wait_idle()
    assert [path.name for path in stage.run.iterdir() if path.is_file() and b"a-secret" in path.read_bytes()] == []


async def test_the_new_shell_gets_its_state_from_the_next_daemon_too(stage: Stage) -> None:
    """Two daemons die: one while the command runs, one before the new shell has got its state."""
    await stage.open()
    os.mkfifo(stage.home / "go")
    running, client = await stage.begin(f"{STATE}; echo begun; read -r x <{stage.home}/go; exit 3", b"begun")
    await stage.next_daemon()
    stage.daemon.line.renew = asyncio.Event().wait
    (stage.home / "go").write_text("\n")
    assert (await stage.resume(client.exec_id, 0)).exit == 3
    await stage.next_daemon()
    again = await stage.resume(client.exec_id, 0)
    assert (again.exit, stage.new_shell) == (3, True)
    assert (await stage.exec(SHOW_STATE)).output.startswith(b"3 a b f 1 /usr ")
    running.cancel()
