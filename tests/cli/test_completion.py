"""Completion in a real bash and a real zsh, with the files that setup writes."""

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.cli.test_startup import MOST_MODULES, SLOW
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S
from waypoint.setup.machine import completion, outside

BASH = "usr/local/share/bash-completion/completions/waypoint"
ZSH = "usr/local/share/zsh/site-functions"
PROMPT = "ready> "


@pytest.fixture(scope="module")
def named() -> Iterator[Home]:
    """A home with the live branch `lively`, the ended branch `rested` and the checkpoint `noted`."""
    with open_home("names") as home:
        home.must("shell", "lively", "-d")
        home.must("shell", "rested", "-d")
        home.must("checkpoint", "noted", "-b", "rested")
        home.must("stop", "--files", "rested")
        yield home


@contextlib.contextmanager
def shell_on(home: Home, shell: str, tmp_path: Path, *, is_installed: bool = True) -> Iterator["pexpect.spawn[str]"]:
    """An interactive shell that has loaded the completion files of setup."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "some-file").touch()
    if is_installed:
        command = tmp_path / "bin/waypoint"
        words = " ".join(f"'{word}'" for word in home.argv())
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)
    env = {**home.env, "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}
    argv = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    terminal = pexpect.spawn(
        shell, argv, env=env, cwd=str(tmp_path), encoding="utf-8", timeout=PATIENCE_S, dimensions=(50, 200)
    )
    terminal.delaybeforesend = None
    if shell == "bash":
        terminal.sendline(f"bind 'set enable-bracketed-paste off'; . {home.root}/{BASH}; PS1='read''y> '")
    else:
        loads = "autoload -Uz compinit; compinit -u -D"
        terminal.sendline(f"fpath=({home.root}/{ZSH} $fpath); {loads}; setopt no_auto_menu; PS1='read''y> '")
    try:
        terminal.expect_exact(PROMPT)
        yield terminal
    finally:
        terminal.close(force=True)


def completed(terminal: "pexpect.spawn[str]", line: str) -> str:
    """Type `line`, TAB and `_`; return what the shell shows. The line is not executed."""
    terminal.send(f"{line}\t_")
    terminal.expect_exact("_")
    seen = re.sub(".\x08", "", (terminal.before or "").replace("\x07", "")) + "_"  # zsh moves back over a space
    terminal.send("\x15echo do''ne\r")  # not Ctrl-C: zsh may miss a signal while it draws the line
    terminal.expect_exact("done\r\n")
    terminal.expect_exact(PROMPT)
    return seen


LINES = [
    ("waypoint resto", "waypoint restore _"),
    ("waypoint daemon stat", "waypoint daemon status _"),
    ("waypoint exec --wait", "waypoint exec --wait-prompt _"),
    ("waypoint checkpoint --tier li", "waypoint checkpoint --tier live _"),
    ("waypoint checkpoint --tier=li", "waypoint checkpoint --tier=live _"),
    ("waypoint restore not", "waypoint restore noted _"),
    ("waypoint restore noted -b re", "waypoint restore noted -b rested _"),
    ("waypoint restore noted --branch=re", "waypoint restore noted --branch=rested _"),
    ("waypoint attach l", "waypoint attach lively _"),
    ("waypoint profile test tm", "waypoint profile test tmux _"),
    ("waypoint attach res", "waypoint attach res_"),  # `rested` is not live
    ("waypoint exec -- cat some-f", "waypoint exec -- cat some-file _"),
    ("waypoint exec -- basena", "waypoint exec -- basename _"),
    ("waypoint setup --user roo", "waypoint setup --user root _"),
    ("waypoint shell --base=/etc/apt/sources.list.", "waypoint shell --base=/etc/apt/sources.list.d/_"),
]


@pytest.mark.privileged
@pytest.mark.requires("zsh")
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete(named: Home, shell: str, tmp_path: Path) -> None:
    with shell_on(named, shell, tmp_path) as terminal:
        for line, expected in LINES:
            assert expected in completed(terminal, line), f"{shell}: {line}"


@pytest.mark.privileged
@pytest.mark.requires("zsh")
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_all_possibilities_are_listed(named: Home, shell: str, tmp_path: Path) -> None:
    with shell_on(named, shell, tmp_path) as terminal:
        terminal.send("waypoint restore \t\t")
        for name in ("lively", "noted", "rested"):
            terminal.expect_exact(name)


@pytest.mark.privileged
@pytest.mark.requires("zsh")
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_works_if_waypoint_is_not_in_path(named: Home, shell: str, tmp_path: Path) -> None:
    with shell_on(named, shell, tmp_path, is_installed=False) as terminal:
        assert "waypoint restore noted _" in completed(terminal, "waypoint restore not")


@pytest.mark.soak(part="timing")
@pytest.mark.privileged
@pytest.mark.requires("zsh")
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_without_a_daemon_is_silent_and_starts_none(shell: str, tmp_path: Path) -> None:
    with open_home("quiet") as home:
        home.must("checkpoint", "noted", "-b", home.must("shell", "-d").stdout.strip())
        home.must("daemon", "stop")
        with shell_on(home, shell, tmp_path) as terminal:
            seen = completed(terminal, "waypoint restore not")
            assert seen.split("waypoint restore ")[1].startswith("not_"), seen
            assert "waypoint restore _" in completed(terminal, "waypoint resto")
        assert home.cli("daemon", "status").code == 4


def asked(home: Home, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(home.argv("__complete", *words), env=home.env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("state", ["no home", "no folder", "nonsense"])
def test_completion_prints_no_errors(state: str, tmp_path: Path) -> None:
    words = ["restore", ""]
    if state == "nonsense":
        words = ["restore", "\udcff", "--home", "/proc/1/root", ""]
    if state == "no folder":
        (tmp_path / "h").write_text("")
    done = asked(Home(tmp_path / "h"), *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


@pytest.mark.privileged
def test_completion_gives_up_on_a_silent_daemon(tmp_path: Path) -> None:
    home = Home(tmp_path / "h")
    home.runtime.mkdir(mode=0o711, parents=True)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(home.runtime / "api.sock"))
            listener.listen()
            done = asked(home, "restore", "")
            assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
    finally:
        (home.runtime / "api.sock").unlink(missing_ok=True)
        home.runtime.rmdir()


@pytest.mark.privileged
def test_completion_imports_few_modules(named: Home) -> None:
    python, *rest = named.argv("__complete", "restore", "")
    done = subprocess.run(
        [python, "-X", "importtime", *rest], env=named.env, capture_output=True, text=True, check=True
    )
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "noted" in done.stdout
    assert "waypoint.client.wire" in loaded
    assert SLOW & loaded == set()
    assert len(loaded) < MOST_MODULES


def test_setup_says_how_bash_reads_the_completion_without_its_package(tmp_path: Path) -> None:
    def said_at_first(share: Path) -> list[str]:
        said: list[str] = []
        for _ in range(2):
            outside.add_completion(tmp_path / "home", share, said.append, tmp_path)
        return said

    line = f". {tmp_path / 'own' / completion.BASH}"
    assert [one for one in said_at_first(tmp_path / "own") if one.endswith(line)]
    sourced = f"{line}; complete -p waypoint"
    assert subprocess.run(["bash", "--norc", "-c", sourced], capture_output=True, check=True).stdout
    (tmp_path / outside.BASH_COMPLETION).parent.mkdir(parents=True)
    (tmp_path / outside.BASH_COMPLETION).touch()
    assert not [one for one in said_at_first(tmp_path / "other") if "bashrc" in one]
