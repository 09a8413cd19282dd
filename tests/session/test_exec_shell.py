"""The shell itself may end, be replaced, or lose our hooks: exec says which."""

import asyncio
import os
import signal

import pytest

from tests.processes_now import words_of
from tests.session.stage import HOOKS, Client, Stage
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.layers.shell import LAST
from waypoint.terminal.hooks import shell_watch
from waypoint.terminal.hooks.prompt import Look


@pytest.mark.parametrize(
    ("text", "status"),
    [(" exit 7 ;", 7), ("exit", 0), ("echo before; kill -KILL $$", 137), ("echo before; exec false", 1)],
)
async def test_a_command_that_ends_the_session_gives_the_shells_status(stage: Stage, text: str, status: int) -> None:
    await stage.open()
    ran = await stage.exec(text)
    assert (ran.exit, ran.by, ran.ended, stage.new_shell) == (status, "command", True, False)
    assert ran.output in (b"", b"exit\n", b"before\n")  # bash says so


async def test_after_the_end_there_is_nothing_to_run_in(stage: Stage) -> None:
    await stage.open()
    await stage.exec("exit 0")
    ran = await stage.exec("echo hi")
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"")
    assert "ended" in ran.said


async def test_one_that_waits_for_the_prompt_is_told_why_the_session_ends(bash: Stage) -> None:
    await bash.open()
    await bash.type(b"sleep 1000\r")
    await bash.wait_foreground(1)
    waiting = asyncio.create_task(bash.exec("echo hi"))
    bash.daemon.terminal.epitaph = "the session was replaced"
    shell = bash.daemon.line.watch.shell
    assert shell is not None
    os.kill(shell.pid, signal.SIGKILL)
    assert await waiting == (125, b"", "waypoint", False, "the session was replaced")


async def test_a_program_in_the_shells_place_is_reported(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("echo before; exec sleep 1000")
    assert (ran.exit, ran.by, ran.output) == (125, "waypoint", b"before\n")
    assert "replaced" in ran.said
    assert "sleep" in ran.said
    again = await stage.exec("echo hi", wait_prompt_s=0.2)
    assert again.exit == 125
    assert "replaced" in again.said


async def test_a_new_shell_in_the_shells_place_does_not_get_our_key(bash: Stage) -> None:
    await bash.open()
    mark = len(bash.printed())
    await bash.type(b"PS1='N''> ' exec bash --norc\r")
    await bash.wait_printed(b"N> ", mark)
    mark = len(bash.printed())
    ran = await bash.exec("echo hi", wait_prompt_s=0.2)
    assert ran.exit == 125
    assert "replaced" in ran.said
    assert b"7717" not in bash.printed(mark)


async def test_a_new_shell_with_our_hooks_is_waited_for_while_the_search_for_it_rests(
    bash: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_watch, "_REST", 1e9)  # the first search is the last, but for those that the test begins
    watch = (await bash.open()).line.watch
    (bash.home / ".bashrc").write_text("PS1='N> '\n")
    wait_change = watch.wait_change

    async def end_the_rest(timeout_s: float) -> bool:
        watch._go_on_searching()
        return await wait_change(timeout_s)

    await bash.exec("old=shell")
    monkeypatch.setattr(watch, "wait_change", end_the_rest)
    mark = len(bash.printed())
    await bash.type(f"WAYPOINT_RUN={bash.run} exec bash --rcfile {HOOKS}/hooks.bash -i\r".encode())
    await bash.wait_printed(b"N> ", mark)
    ran = await bash.exec("echo new$old")
    assert (ran.exit, ran.output, ran.said) == (0, b"new\n", "")


async def test_a_new_shell_with_our_hooks_is_waited_for_until_it_draws_its_prompt(
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
        await asyncio.sleep(0)  # the kernel gives no event for it
    monkeypatch.setattr(watch, "wait_change", let_it_draw)
    ran = await bash.exec("echo new")
    assert (ran.exit, ran.output, ran.said) == (0, b"new\n", "")


async def test_a_shell_below_the_shell_does_not_get_our_key(stage: Stage) -> None:
    await stage.open()
    mark = len(stage.printed())
    await stage.type(b"PS1='N''> ' bash --norc\r")
    await stage.wait_printed(b"N> ", mark)
    mark = len(stage.printed())
    ran = await stage.exec("echo hi", wait_prompt_s=0.3)
    assert ran.exit == 125
    assert "bash --norc" in ran.said
    assert b"7717" not in stage.printed(mark)


@pytest.mark.parametrize(
    "text",
    [
        "unset -f __wp __wp_z __wp_fin __wp_pc __wp_arm __wp_say",
        'bind -m emacs -r "\\e[7717~"; unset -f __wp_z __wp_pc',
    ],
)
async def test_hooks_that_were_taken_away_are_reported(bash: Stage, text: str) -> None:
    await bash.open()
    ran = await bash.exec(f"echo before; {text}")
    assert (ran.exit, ran.by, ran.output.partition(b"\n")[0]) == (125, "waypoint", b"before")
    again = await bash.exec("echo again")
    assert (again.exit, again.by) == (125, "waypoint")
    assert "hooks" in again.said or "answer" in again.said


async def test_an_end_that_was_not_said_is_found_with_its_status(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("echo before; __wp_z() { return $?; }; __wp_pc() { :; }; (exit 9)")
    assert ran.output.startswith(b"before\n")
    assert (ran.exit, ran.by) == (9, "command")


async def test_readonly_variables_do_not_matter(bash: Stage) -> None:
    await bash.open("readonly PAGER=less HISTCONTROL=x PS0=a PS2=b")
    assert (await bash.exec("echo $PAGER")).output == b"less\n"
    assert (await bash.exec("echo again")).output == b"again\n"


async def test_a_readonly_prompt_command_does_not_matter(bash: Stage) -> None:
    await bash.open()
    await bash.exec("readonly PROMPT_COMMAND")
    assert (await bash.exec("echo again")).output == b"again\n"


async def test_without_job_control_all_is_the_same(stage: Stage) -> None:
    await stage.open()
    await stage.exec("set +m")
    assert (await stage.exec("/bin/echo one; sh -c 'exit 3'")).exit == 3
    assert (await stage.exec("echo two")).output == b"two\n"


@pytest.mark.parametrize("setup", ["stty raw -echo", "stty -echo", "stty -icanon", "stty ocrnl"])
async def test_changed_terminal_modes_do_not_matter(stage: Stage, setup: str) -> None:
    await stage.open()
    await stage.exec(f"{setup} </dev/tty")
    assert (await stage.exec("echo one; /bin/echo two")).output == b"one\ntwo\n"


@pytest.mark.parametrize("size", [(24, 20), (2, 10), (1, 1), (200, 500)])
async def test_the_window_may_have_any_size(stage: Stage, size: tuple[int, int]) -> None:
    daemon = await stage.open()
    daemon.terminal.window.resize(*size)
    assert (await stage.exec("echo one")).output == b"one\n"
    assert (await stage.exec("echo two")).output == b"two\n"


async def test_a_shell_without_its_line_editor_is_refused_in_words(bash: Stage) -> None:
    await bash.open(options=("--noediting",))
    ran = await bash.exec("echo hi", wait_prompt_s=0.2)
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert "line editor" in ran.said


async def test_a_shell_that_is_still_starting_is_waited_for(stage: Stage) -> None:
    await stage.open("sleep 0.5", wait=False)
    assert (await stage.exec("echo hi", wait_prompt_s=PATIENCE_S)).output == b"hi\n"


async def test_a_shell_that_never_gets_to_its_prompt_is_refused_in_words(stage: Stage) -> None:
    await stage.open("sleep 1000", wait=False)

    def sleeps() -> bool:
        return any(words_of(pid) == ["sleep", "1000"] for pid in stage.processes())

    await asyncio.to_thread(wait_until, sleeps, "the shell's startup file runs")
    ran = await stage.exec("echo hi", wait_prompt_s=0.3)
    assert (ran.exit, ran.by) == (125, "waypoint")
    assert "sleep 1000" in ran.said


async def test_the_folder_may_be_gone(stage: Stage) -> None:
    await stage.open()
    assert (await stage.exec(f"find {stage.run} -mindepth 1 -delete")).exit == 0
    done = await stage.exec("echo again")
    assert done.output == b"again\n", done


async def test_what_the_user_puts_in_the_folder_is_not_followed(bash: Stage) -> None:
    await bash.open()
    target = bash.home / "precious"
    target.write_text("precious")
    await bash.exec(f"ln -sf {target} {bash.run}/req; ln -sf {target} {bash.run}/.req.new; rm {bash.run}/go")
    await bash.exec(f"ln -sf {target} {bash.run}/go")
    assert (await bash.exec("echo again")).output == b"again\n"
    assert target.read_text() == "precious"


async def test_zsh_reads_the_users_own_files_and_has_their_folder(zsh: Stage) -> None:
    zsh.home.mkdir()
    (zsh.home / ".zshenv").write_text("from_env=1\n")
    await zsh.open("from_rc=1\nprecmd_functions=()")
    ran = await zsh.exec('echo $from_env $from_rc "${ZDOTDIR-unset}" ${+WAYPOINT_RUN}')
    assert ran.output == b"1 1 unset 0\n"


async def test_bash_has_nothing_of_ours_in_its_environment(bash: Stage) -> None:
    await bash.open()
    ran = await bash.exec("env")
    assert b"__wp" not in ran.output
    assert b"WAYPOINT" not in ran.output


async def test_nothing_of_ours_is_open_while_a_command_runs(stage: Stage) -> None:
    await stage.open()
    ran = await stage.exec("ls -l /proc/$$/fd")
    assert str(stage.run).encode() not in ran.output


async def test_the_folder_is_clean_after_a_command(stage: Stage) -> None:
    await stage.open()
    await stage.exec("true")
    await stage.daemon.line.wait_idle()
    stay = {"go", "nonce", "names", *LAST, "hist.0", "hist.1"}
    # zsh has a history that it is writing beside the one that it replaces.
    await asyncio.to_thread(wait_until, lambda: {path.name for path in stage.run.iterdir()} <= stay, "it is clean")
    client = Client()
    client.send("i", b"")
    await stage.exec("cat", client, stdin=True)
    await stage.daemon.line.wait_idle()
    await asyncio.to_thread(wait_until, lambda: {path.name for path in stage.run.iterdir()} <= stay, "it is clean")


async def test_with_a_folder_or_variables_of_its_own_nothing_of_a_command_stays(stage: Stage) -> None:
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
