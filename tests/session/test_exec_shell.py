"""exec works or reports the reason when the shell ends, is replaced, or removes or changes our hooks or their files."""

import asyncio
import os
import signal

import pytest

from tests.collecting import collecting
from tests.session.stage import HOOKS, Client, Stage
from tests.waiting import PATIENCE_S
from waypoint.capture.layers.shell import LAST
from waypoint.terminal.hooks.prompt import Look


async def test_exec_returns_the_exit_status_of_a_shell_that_the_command_ends(stage: Stage) -> None:
    with collecting() as row:
        for text, status in (
            (" exit 7 ;", 7),
            ("exit", 0),
            ("echo before; kill -KILL $$", 137),
            ("echo before; exec false", 1),
        ):
            with row(text):
                fresh = await stage.fresh()
                ran = await fresh.exec(text)
                assert (ran.exit, ran.by, ran.ended, fresh.new_shell) == (status, "command", True, False)
                assert ran.output in (b"", b"exit\n", b"before\n")  # bash prints `exit`
                after = await fresh.exec("echo hi")
                assert (after.exit, after.by, after.output) == (125, "waypoint", b"")
                assert "ended" in after.said


async def test_a_command_that_waits_for_the_prompt_reports_why_the_session_ended(bash: Stage) -> None:
    await bash.open()
    await bash.type(b"sleep 1000\r")
    await bash.wait_foreground(1)
    waiting = asyncio.create_task(bash.exec("echo hi"))
    bash.daemon.terminal.epitaph = "the session was replaced"
    shell = bash.daemon.line.watch.shell
    assert shell is not None
    os.kill(shell.pid, signal.SIGKILL)
    assert await waiting == (125, b"", "waypoint", False, "the session was replaced")


async def test_a_program_that_replaced_the_shell_is_reported(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("echo before; exec sleep 1000")
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"before\n")
    again = await stage.exec("echo hi", wait_prompt_s=0.2)
    assert again.exit == 125
    assert {word in said for word in ("replaced", "sleep") for said in (ran.said, again.said)} == {True}


async def test_the_key_of_the_hooks_is_not_sent_to_a_shell_without_hooks(stage: Stage) -> None:
    rows = [("PS1='N''> ' bash --norc", "bash --norc")]
    rows += [("PS1='N''> ' exec bash --norc", "replaced")] if stage.shell == "bash" else []
    with collecting() as row:
        for typed, said in rows:
            with row(typed):
                fresh = await stage.fresh()
                mark = len(fresh.printed())
                await fresh.type(f"{typed}\r".encode())
                await fresh.wait_printed(b"N> ", mark)
                mark = len(fresh.printed())
                ran = await fresh.exec("echo hi", wait_prompt_s=0.3)
                assert ran.exit == 125
                assert said in ran.said
                assert b"7717" not in fresh.printed(mark)


async def test_exec_waits_until_a_new_shell_with_our_hooks_draws_its_prompt(
    bash: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = (await bash.open()).line.watch
    wait_change = watch.wait_change

    async def let_it_draw(timeout_s: float) -> bool:
        if go.exists():
            go.write_text("\n")
            go.unlink()
        return await wait_change(timeout_s)

    go = bash.folder / "go"
    (bash.home / ".bashrc").write_text(f"read -r <{go}\n")
    os.mkfifo(go)
    await bash.type(f"WAYPOINT_RUN={bash.run} exec bash --rcfile {HOOKS}/hooks.bash -i\r".encode())
    while watch.look() is not Look.REPLACED:
        await asyncio.sleep(0)  # the kernel reports no event for this
    monkeypatch.setattr(watch, "wait_change", let_it_draw)
    ran = await bash.exec("echo new")
    assert (ran.exit, ran.output, ran.said) == (0, b"new\n", "")


@pytest.mark.soak(part="timing")
async def test_removed_hooks_are_reported(bash: Stage) -> None:
    with collecting() as row:
        for text in (
            "unset -f __wp __wp_z __wp_fin __wp_pc __wp_arm __wp_say",
            'bind -m emacs -r "\\e[7717~"; unset -f __wp_z __wp_pc',
        ):
            with row(text):
                fresh = await bash.fresh()
                fresh.daemon.line.can_renew = lambda: False
                ran = await fresh.exec(f"echo before; {text}")
                assert (ran.exit, ran.by, ran.output.partition(b"\n")[0]) == (125, "waypoint", b"before")
                again = await fresh.exec("echo again")
                assert (again.exit, again.by) == (125, "waypoint")
                assert "hooks" in again.said or "answer" in again.said


async def test_an_end_that_the_hooks_did_not_report_is_found_with_its_status(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("echo before; __wp_z() { return $?; }; __wp_pc() { :; }; (exit 9)")
    assert ran.output.startswith(b"before\n")
    assert (ran.exit, ran.by) == (9, "command")


async def test_the_window_may_have_any_size(stage: Stage) -> None:
    daemon = await stage.open()
    for size in ((24, 20), (2, 10), (1, 1), (200, 500)):
        daemon.terminal.window.resize(*size)
        assert [(await stage.exec("echo one")).output for _ in range(2)] == [b"one\n"] * 2, size


async def test_a_shell_that_cannot_serve_commands_is_refused_with_the_reason(bash: Stage) -> None:
    await bash.open(options=("--noediting",))
    ran = await bash.exec("echo hi", wait_prompt_s=0.2)
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert "line editor" in ran.said


async def test_a_shell_that_is_still_starting_is_waited_for_or_reported(stage: Stage) -> None:
    await stage.open("until [ -e go ]; do sleep 0.1; done", wait=False)
    ran = await stage.exec("echo hi", wait_prompt_s=0.3)
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert "runs in the foreground" in ran.said
    waiting = asyncio.create_task(stage.exec("echo hi", wait_prompt_s=PATIENCE_S))
    (stage.home / "go").touch()
    assert (await waiting).output == b"hi\n"


async def test_exec_works_after_the_session_removed_the_files_of_the_run_folder(stage: Stage) -> None:
    await stage.open()
    assert (await stage.exec(f"find {stage.run} -mindepth 1 -delete")).exit == 0
    done = await stage.exec("echo again")
    assert done.output == b"again\n", done


async def test_links_in_the_run_folder_are_not_followed(bash: Stage) -> None:
    await bash.open()
    target = bash.home / "precious"
    target.write_text("precious")
    await bash.exec(f"ln -sf {target} {bash.run}/req; ln -sf {target} {bash.run}/.req.new; rm {bash.run}/go")
    await bash.exec(f"ln -sf {target} {bash.run}/go")
    assert (await bash.exec("echo again")).output == b"again\n"
    assert target.read_text() == "precious"


async def test_zsh_reads_the_startup_files_of_the_user(zsh: Stage) -> None:
    zsh.home.mkdir()
    (zsh.home / ".zshenv").write_text("from_env=1\n")
    await zsh.open("from_rc=1\nprecmd_functions=()")
    ran = await zsh.exec('echo $from_env $from_rc "${ZDOTDIR-unset}" ${+WAYPOINT_RUN}')
    assert ran.output == b"1 1 unset 0\n"


async def test_a_command_leaves_no_file_in_the_run_folder_and_inherits_none(stage: Stage) -> None:
    await stage.open()
    stay = {"go", "nonce", "names", *LAST}
    client = Client()
    client.send("i", b"")
    for text, stdin in (("ls -l /proc/$$/fd", False), ("cat", True)):
        ran = await stage.exec(text, client if stdin else None, stdin=stdin)
        assert str(stage.run).encode() not in ran.output
        await stage.daemon.line.wait_idle()
        left = {path.name for path in stage.run.iterdir()} - stay
        assert {name for name in left if not name.startswith("hist.")} == set()  # zsh may be writing its history


async def test_a_command_with_its_own_folder_or_variables_changes_nothing_in_the_shell(stage: Stage) -> None:
    await stage.open()
    given = {"cwd": "/usr", "env": {"A": "1 '2'\n3"}}
    ran = await stage.exec('pwd; echo "$A"; mine=here # a comment', **given)
    assert ran == (0, b"/usr\n1 '2'\n3\n", "command", False, "")
    assert (await stage.exec('pwd; echo "${A-}${mine-}"')).output == os.fsencode(f"{stage.home}\n\n")
    assert (await stage.exec("cat <<X\n$A\nX\n(exit 3)", **given)).exit == 3
    assert (await stage.exec("echo before; exit 5", **given)) == (5, b"before\n", "command", False, "")
    refused = await stage.exec("echo before\necho (", **given)
    assert refused.exit == 2
    assert b"before\n" not in refused.output
    refused = await stage.exec("echo never", cwd="/no/such/folder")
    assert refused.exit == 125
    assert b"never" not in refused.output
    assert b"/no/such/folder" in refused.output


async def test_a_debug_trap_runs_for_the_users_commands_only(stage: Stage) -> None:
    await stage.open()
    await stage.exec("trap 'echo \"dbg $?\"; n=$((n + 1))' DEBUG")
    await stage.exec("n=0; (exit 3)")
    assert (await stage.exec("echo one")).output == b"dbg 3\none\n"
    assert (await stage.exec("echo two", tty=True)).output == b"dbg 0\r\ntwo\r\n"
    ran = await stage.exec("trap - DEBUG; echo $n")
    assert stage.shell == "zsh" or ran.output == b"dbg 0\n3\n"
    assert (await stage.exec("echo three")).output == b"three\n"
