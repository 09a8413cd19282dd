"""Describing a capture for whoever goes on with it, and finding captures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.terminal.plain import plain_lines


@pytest.fixture(scope="module")
def branch(home: Home) -> Iterator[str]:
    with session(home, "root") as name:
        yield name


@pytest.mark.privileged
def test_a_handoff_has_what_is_needed_and_no_secrets(home: Home, branch: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("look at the parser\n")
    home.must("point", "-b", branch, "--label", "make the parser faster")
    inside(home, branch, "mkdir -p /srv/app; echo 1 >/srv/app/parser.py; API_TOKEN=hunter2 sleep 99999 & true")
    home.must("logs", branch)
    name = f"{branch}-ready"
    home.must("checkpoint", name, "-b", branch, "-m", "half done", "--attach", f"notes={tmp_path}/notes")
    text = home.must("handoff", name).stdout
    for part in (
        f"# Handoff: {name}",
        f"waypoint restore {name} --new NEW",
        f"waypoint export {name}",
        "make the parser faster",
        "`half done`",
        "/srv/app/parser.py",
        "sleep",
        f"waypoint layer get {name} notes",
        "API_TOKEN=***",  # in the output: the terminal shows the command line of an exec
    ):
        assert part in text, text
    assert "hunter2" not in text
    assert "\x1b" not in text
    facts = home.must("handoff", name, "--json").json()
    assert "hunter2" not in str(facts)
    assert (facts["name"], facts["live"], facts["capture"]["branch"]) == (name, False, branch)
    assert [one["name"] for one in facts["files"]] == ["/srv/app/parser.py"]
    assert home.must("handoff", branch, "--json").json()["live"] is True
    assert home.cli("handoff", "nothing-of-this-name").code == 2


def found(home: Home, text: str) -> list[tuple[str | None, list[str]]]:
    """The captures that match, each with its matches."""
    listed = home.must("search", text, "--json").json()["found"]
    return [(one["capture"], [f"{match['where']} {match['text']}" for match in one["matches"]]) for one in listed]


@pytest.mark.privileged
def test_a_search_finds_names_messages_labels_commands_and_files(home: Home, branch: str) -> None:
    inside(home, branch, "mkdir -p /opt/Zeta; echo 1 >/opt/Zeta/one; API_KEY=hunter2 true zetacommand")
    home.must("point", "-b", branch, "--label", "begin\nthe ZETA prompt")
    name = f"{branch}-zeta"
    kept = home.must("checkpoint", name, "-b", branch, "-m", "zeta kept", "--force", "--json").json()["capture"]
    removing = "rm -r /opt/Zeta; rm /etc/hostname; : 'zeta*now'"
    inside(home, branch, removing)
    live, (_, point), *before = sorted(found(home, "zeta"), key=lambda one: (one[0] is not None, one[0] != kept))
    assert live == (None, [f"command {removing}"])
    assert [name for name in (f"name {name}", "message zeta kept", "file /opt/Zeta/one") if name not in point] == []
    matches = [*point, *(match for _, matches in before for match in matches)]
    assert "label the ZETA prompt" in matches
    assert "command mkdir -p /opt/Zeta; echo 1 >/opt/Zeta/one; API_KEY=*** true zetacommand" in matches
    assert found(home, "zeta*") == [live]
    assert found(home, "/ETC/hostname") == [(None, [f"command {removing}", "file /etc/hostname"])]
    assert home.must("search", "zeta", "-n", "1", "--json").json()["is_limited"]
    assert home.cli("search", "nothing has this text").code == 1


@pytest.mark.privileged
def test_an_adopted_program_runs_in_the_shell_and_has_a_point_at_its_end(home: Home) -> None:
    name = "adopted"
    home.must("adopt", "-b", name, "-d", "--", "sh", "-c", "echo $((40 + 2)) >/srv/answer; exit 0")
    wait_until(
        lambda: any(one.startswith("after: sh -c") for one in labels(home, name)), "the program's end has a point"
    )
    assert home.must("cat", f"{name}:/srv/answer").stdout == "42\n"
    assert home.cli("adopt", "-b", name, "-d", "--", "a\nb").code == 2
    home.must("stop", name, "--discard")


def labels(home: Home, branch: str) -> list[str]:
    return [one["label"] for one in home.must("rewind", branch, "--list", "--json").json()]


def test_output_is_made_plain() -> None:
    output = "\x1b]0;title\x07\x1b[1mbold\x1b[m\r\n10%\r20%\r\nab\bc\r\n\n\n\x1b[?1049hfull\x1b[?1049lend\x1b["
    assert plain_lines(output, 9) == ["bold", "20%", "ac", "", "end"]
    assert plain_lines("1\n2\n3\n", 2) == ["2", "3"]
    assert plain_lines("\x1bP" * 200_000, 9) == []  # in linear time
