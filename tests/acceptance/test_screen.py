"""The screen of an attached session, seen in tmux: full-screen programs, redrawing, several screens at once."""

import re
from collections.abc import Callable

import pytest

from tests.acceptance.people import Person
from tests.acceptance.screen import Screen
from tests.acceptance.sessions import session
from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("tmux", "vi", "less")]
Open = Callable[..., Screen]

PROMPT = r"^\[\S+\] wptest\S+:\S*\$$"


def attach(screen: Screen, branch: str) -> Screen:
    """Clear the screen and attach, without waiting for output of the session."""
    screen.enter("clear")
    screen.see(r"\Aoutside>$\s*\Z")
    screen.enter(f"waypoint attach {branch}")
    return screen


def at_prompt(screen: Screen, branch: str) -> Screen:
    """Attach and wait for the prompt."""
    attach(screen, branch).see(PROMPT)
    return screen


def picture(screen: Screen) -> tuple[str, tuple[int, int]]:
    return screen.coloured(), screen.cursor()


def detach(screen: Screen, branch: str) -> None:
    screen.press("C-]")
    screen.type("d")
    screen.see(rf"^\[detached from {branch}\]\n(?:.*\n)*outside>$")


def test_a_new_session_shows_a_prompt_and_its_colours(home: Home, person: Person, screen: Open) -> None:
    outer = screen()
    outer.enter(f"waypoint shell colours --user {person.name} --cwd /tmp")
    outer.see(rf"^\[colours\] {person.name}@\S+:/tmp\$")
    assert f"\x1b[1m\x1b[32m{person.name}@" in outer.coloured()
    outer.enter(r"clear; echo $TERM; printf '\033[31mred\033[38;5;208morange\033[0mplain \xe2\x82\xac \xe6\xbc\xa2\n'")
    outer.see(r"^screen-256color\nredorangeplain € 漢$")
    assert "\x1b[31mred\x1b[38;5;208morange\x1b[39mplain" in outer.coloured()
    outer.enter("exit 3")
    outer.see(r"outside>$")
    outer.enter("echo status $?")
    outer.see(r"^status 3$")


def test_vi_edits_a_file_and_restores_the_screen(home: Home, branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter("clear; echo be''fore; vi /tmp/edited")
    outer.see(r"^~\n~\n~")
    assert outer.flag("alternate_on")
    outer.type("ifirst line")
    outer.press("Enter")
    outer.type("second")
    outer.press("Escape")
    outer.press("g", "g")
    outer.enter(":s/first/very first/")
    outer.see(r"^very first line\nsecond\n~")
    outer.enter(":wq")
    outer.see(r"^before\n\S+ \S+\$$")
    assert not outer.flag("alternate_on")
    assert home.must("exec", "-b", branch, "--", "cat /tmp/edited").stdout == "very first line\nsecond\n"


def test_attaching_again_shows_the_same_screen(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter(r"clear; seq 12; printf '\033[31mred\033[0m\n'")
    outer.see(r"^12\nred\n.*\$$")
    outer.type("echo half a li")
    outer.see(r"\$ echo half a li$")
    before = picture(outer)
    detach(outer, branch)
    attach(outer, branch).see_all(picture, before)
    outer.enter("ne")
    outer.see(r"^half a line$")


def test_attaching_again_shows_the_last_lines_of_a_long_output(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter("clear; seq 300000")
    outer.see(r"^299999\n300000\n.*\$$")
    before = picture(outer)
    detach(outer, branch)
    attach(outer, branch).see_all(picture, before)


def test_attaching_again_shows_vi_unchanged(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter("clear; echo be''low; seq -f 'line %g' 361 >/tmp/lines; vi +'set number ruler' /tmp/lines")
    outer.see(r"^ +29 ")
    outer.press("C-f")
    outer.press("5", "j", "w")
    outer.see(r"^ +28 (?:.*\n)+ +56 .*\n +\d+,6 ")
    before = picture(outer)
    detach(outer, branch)
    assert not outer.flag("alternate_on")
    attach(outer, branch).see_all(picture, before)
    assert outer.flag("alternate_on")
    outer.enter(":q!")
    outer.see(r"^below\n\S+ \S+\$$")
    assert not outer.flag("alternate_on")


def test_attaching_again_does_not_replay_an_earlier_program(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    many = r"for i in {1..9000}; do printf '\033[%d;5H drawn ' $((i % 25 + 1)); done"
    outer.enter(rf"clear; printf '\033[?1049h'; {many}; printf '\033[?1049l\rback\n'")
    outer.see(r"^back\n.*\$$")
    detach(outer, branch)
    assert "drawn" not in attach(outer, branch).see(PROMPT)


def test_vi_is_shown_on_two_screens_in_the_size_of_the_smaller(branch: str, screen: Open) -> None:
    first, second = screen(40, 120), screen(20, 60)
    attach(first, branch).see(PROMPT)
    first.enter("clear; seq -f 'line %g' 361 >/tmp/lines; vi +'set number ruler' /tmp/lines")
    first.see(r"^ +39 ")
    attach(second, branch).see(r"^ +1 (?:.*\n)+ +19 ")
    first.see(r"^ +1 (?:.*\n){2,18} +1\d [^\n]*\n(?:(?! +2\d).*\n?)*\Z")
    second.press("G", "o")
    second.type("typed in the second")
    first.see(r"typed in the second")
    second.press("Escape")
    detach(second, branch)
    first.type("gg")
    first.see(r"^ +1 (?:.*\n)+ +39 ")
    first.enter(":q!")
    first.see(PROMPT)


def test_a_resized_screen_is_redrawn(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter("clear; seq -f 'line %g' 361 | less -N")
    outer.see(r"^ +29 ")
    outer.resize(12, 60)
    outer.see(r"^ +1 (?:.*\n){10} +11 ")
    outer.resize(45, 160)
    outer.see(r"^ +1 (?:.*\n)+ +44 ")
    outer.type("q")
    outer.see(PROMPT)


def test_a_paste_of_several_lines_waits_for_enter(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter("clear; echo cleare''d")
    outer.see(rf"^cleared\n{PROMPT[1:]}")  # a new prompt: the shell marks pastes only while it reads a line
    outer.paste("echo on''e\necho tw''o\n")
    assert "\none" not in outer.see(r"echo on''e\necho tw''o$")
    outer.press("Enter")
    outer.see(r"^one\ntwo$")


def test_detaching_resets_the_modes_of_the_terminal(branch: str, screen: Open) -> None:
    outer = at_prompt(screen(), branch)
    outer.enter(r"clear; printf '\033[?1049h\033[?1006;1003h\033[?25l\033[?1h\033='; echo read''y; read x")
    outer.see("ready")
    flags = ("alternate_on", "mouse_any_flag", "mouse_sgr_flag", "keypad_cursor_flag", "keypad_flag")
    assert [outer.flag(name) for name in flags] == [True] * 5
    assert not outer.flag("cursor_flag")
    detach(outer, branch)
    assert [outer.flag(name) for name in flags] == [False] * 5
    assert outer.flag("cursor_flag")
    attach(outer, branch).see("ready")
    assert [outer.flag(name) for name in flags] == [True] * 5
    assert not outer.flag("cursor_flag")


@pytest.mark.requires("zsh")
def test_zsh_edits_lines_and_shows_a_prompt_at_the_right(home: Home, zsh_person: Person, screen: Open) -> None:
    with session(home, zsh_person.name, "--cwd", "/tmp") as branch:
        outer = attach(screen(), branch)
        outer.see(rf"^\[{branch}\] {zsh_person.name} /tmp %")
        outer.enter("RPROMPT=right; clear")
        outer.see(r"% +right$")
        outer.type("echo on three")
        outer.press("M-b", "Left")
        outer.type("e two")
        outer.see(r"% echo one two three +right$")
        before = picture(outer)
        detach(outer, branch)
        attach(outer, branch).see_all(picture, before)
        outer.press("Enter")
        assert re.search(r"^one two three$", outer.see(r"^one two three\n.*% +right$"), re.MULTILINE)
