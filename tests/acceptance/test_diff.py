"""`waypoint diff`: what sessions have changed, and what captures differ in."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside, session
from tests.acceptance.small_base import make_base
from tests.cli.conftest import Spawn
from tests.cli.conftest import on_terminal as on_terminal
from tests.homes import Home
from tests.waiting import until_runs
from waypoint.client import Client
from waypoint.model.errors import UnknownName

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

WORK = r"""unset HISTFILE; mkdir -p /srv/diff/made; cd /srv/diff; seq 30 > lines; printf '\0\1' > binary; echo x > gone
ln -s lines link; printf x > "$(printf 'odd\033[31m\n\377')"; head -c 2000000 /dev/zero > large
mode=$(stat -c %a /etc/hostname); chmod 612 /etc/hostname; chmod $mode /etc/hostname
export KEPT=1 CHANGED=1 GONE=1; sleep 1001 & """ + until_runs("sleep 1001")
LATER = r"""sed -i 's/^7$/seven/' lines; printf '\0\2' > binary; rm gone; ln -sf binary link; echo y >> large
touch same; chmod 700 made; mv made moved; export CHANGED=2 NEW='secret'; unset GONE; kill %1; wait %1
sleep 1002 & """ + until_runs("sleep 1002")


@pytest.fixture(scope="module")
def branch(home: Home) -> Iterator[str]:
    """A live session that has done `WORK`, was captured as `diff-a`, has done `LATER`, and was captured as `diff-b`."""
    with session(home, "root", "--cwd", "/srv") as name:
        inside(home, name, WORK)
        home.must("checkpoint", "diff-a", "-b", name, "--wait")
        inside(home, name, LATER)
        home.must("checkpoint", "diff-b", "-b", name, "--wait")
        yield name


def lines_of(home: Home, *words: str) -> list[str]:
    return home.must("diff", *words).stdout.splitlines()


def test_a_branch_is_compared_with_the_machine(home: Home, branch: str) -> None:
    """What was changed and changed back is no difference, and nothing is told of programs."""
    found = lines_of(home, branch)
    told = [line for line in found if "/srv/diff" in line]
    assert told == [
        "A  /srv/diff/",
        "A  /srv/diff/binary",
        "A  /srv/diff/large",
        "A  /srv/diff/lines",
        "A  /srv/diff/link",
        "A  /srv/diff/moved/",
        r'A  "/srv/diff/odd\033[31m\n\377"',
        "A  /srv/diff/same",
    ]
    assert not [line for line in found if "/etc/" in line or "waypoint" in line or "programs" in line]
    assert lines_of(home, branch, "--", "/etc", "/srv/diff/lines") == ["A  /srv/diff/lines"]
    assert home.must("diff", branch, "--", "hostname", cwd=Path("/etc")).stdout == ""
    assert home.cli("diff", branch, "--exit-code", "--", "/etc").code == 0
    assert home.cli("diff", branch, "--exit-code", "--", "/srv").code == 1


@pytest.mark.parametrize("other", [(), ("diff-b",), ("LIVE",)])
def test_a_checkpoint_is_compared_with_what_came_of_it(home: Home, branch: str, other: tuple[str, ...]) -> None:
    names = [branch if name == "LIVE" else name for name in other]
    found = home.must("diff", "diff-a", *names, "--json").json()
    assert {change["path"]: change["change"] for change in found["files"]} == {
        "/srv/diff/binary": "changed",
        "/srv/diff/gone": "removed",
        "/srv/diff/large": "changed",
        "/srv/diff/lines": "changed",
        "/srv/diff/link": "changed",
        "/srv/diff/made": "removed",
        "/srv/diff/moved": "added",
        "/srv/diff/same": "added",
    }
    assert found["processes"] == {"removed": ["sleep 1001"], "added": ["sleep 1002"]}
    assert found["environment"] == {"removed": ["GONE"], "added": ["NEW"], "changed": ["CHANGED"]}
    assert found["different"] is True
    assert "secret" not in str(found)
    assert found["one"]["live"] is False
    assert found["other"]["live"] is (names != ["diff-b"])
    if not names:
        assert home.cli("diff", "diff-b", "--exit-code").stdout == ""


def test_the_lines_that_differ_are_a_patch(home: Home, branch: str, tmp_path: Path) -> None:
    told = home.must("diff", "diff-a", "diff-b", "-p").stdout
    assert "M  /srv/diff/binary (binary)\nD  /srv/diff/gone\n--- a/srv/diff/gone\n+++ /dev/null\n" in told
    assert "M  /srv/diff/large (more than 1 MiB)\n" in told
    assert "\nprograms:\n+ sleep 1002\n- sleep 1001\n\nenvironment:\n+ NEW\n- GONE\n~ CHANGED\n" in told
    file = tmp_path / "srv/diff/lines"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{number}\n" for number in range(1, 31)))
    patch = home.must("diff", "diff-a", "diff-b", "-p", "--", "/srv/diff/lines").stdout
    subprocess.run(["git", "apply"], input=patch.encode(), cwd=tmp_path, check=True)
    assert file.read_text() == inside(home, branch, "cat /srv/diff/lines")


def test_sizes_are_told_and_added_up(home: Home, branch: str) -> None:
    found = lines_of(home, "diff-a", "diff-b", "--stat", "--", "/srv/diff/gone", "/srv/diff/lines", "/srv/diff/same")
    assert [line.split() for line in found] == [
        ["D", "/srv/diff/gone", "2", "B", "->", "gone"],
        ["M", "/srv/diff/lines", "81", "B", "->", "85", "B"],
        ["A", "/srv/diff/same", "0", "B"],
        ["3", "files:", "1", "added,", "1", "changed,", "1", "removed;", "2", "B", "more"],
    ]


def test_what_was_evicted_is_brought_back_for_it(home: Home, branch: str) -> None:
    shown = home.must("show", "diff-a", "--json").json()
    places = [home.path / "hot" / shown["capture"], pool_of(home) / shown["layers"]["files"]["tree"]]
    assert [place.exists() for place in places] == [True, True]
    home.must("evict", "diff-a")
    assert [place.exists() for place in places] == [False, False]
    with_content = Client(home.path).changes.diff("diff-a", "diff-b", patch=True).files
    assert [change["patch"] for change in with_content if change["path"] == "/srv/diff/gone"] == [
        "--- a/srv/diff/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n".replace("-1,1", "-1")
    ]
    assert [place.exists() for place in places] == [True, True]


def pool_of(home: Home) -> Path:
    """Where the trees are, as the daemon sees it."""
    return Path(f"/proc/{Client(home.path).status().pid}/root{home.path}/pool")


def test_on_a_terminal_it_is_coloured_and_paged(home: Home, branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("diff", "diff-a", "diff-b", env={"PAGER": "sed 's/^/paged: /'"})
    terminal.expect_exact(b"paged: \x1b[33mM  /srv/diff/binary\x1b[0m")
    terminal.expect_exact(b"paged: environment:")
    plain = on_terminal("diff", branch, "--", "/srv/diff", env={"PAGER": "cat", "NO_COLOR": "1"})
    plain.expect_exact(b'A  "/srv/diff/odd\\033[31m\\n\\377"\r\n')


def test_what_cannot_be_compared_is_refused_in_words(home: Home, branch: str, tmp_path: Path) -> None:
    for words in (("diff-a", "diff-b", "--machine"), ("diff-a", "--stat", "--patch")):
        done = home.cli("diff", *words)
        assert (done.code, done.stdout) == (2, "")
        assert "next: leave out one of the two" in done.stderr
    assert lines_of(home, "diff-a", "--machine", "--", "/srv/diff/gone") == ["A  /srv/diff/gone"]
    for path in ("/srv/diff/nosuch", "/srv/diff/lines/nosuch", "/etc/no/such"):
        done = home.cli("diff", "diff-a", "diff-b", "--", "/srv/diff/gone", path)
        assert (done.code, done.stdout) == (2, "")
        said = "there is nothing that could be compared, neither on the one side nor on the other"
        assert f"cannot compare {path}: {said}\n" in done.stderr
        assert "next: name what 'waypoint diff' tells, absolute or from this folder\n" in done.stderr
    assert lines_of(home, "diff-a", "diff-b", "--", "/etc/hostname", "/dev/nosuch", "/srv/diff/gone") == [
        "D  /srv/diff/gone"
    ]
    with pytest.raises(UnknownName, match="nothing has this name"):
        Client(home.path).changes.diff("no-such-name")
    with session(home, "root", "--base", str(make_base(tmp_path / "base"))) as other:
        inside(home, other, "echo own > /etc/marker")
        done = home.cli("diff", other, branch)
        assert done.code == 2
        assert "next: compare each with what is under it: waypoint diff NAME --machine" in done.stderr
        assert lines_of(home, other, "--machine") == ["M  /etc/marker"]
        _check_what_base_is_told(home, other, tmp_path / "base")
        home.must("stop", other)
        assert lines_of(home, other, "-p")[-2:] == ["-the small base", "+own"]


def _check_what_base_is_told(home: Home, branch: str, base: Path) -> None:
    """Paths are the session's: of what folder is said."""
    for words in (("diff", branch), ("apply", branch, "--dry-run"), ("apply", branch)):
        assert home.must(*words, "--", "/etc/marker").stderr.splitlines()[0] == f"onto {base}"
    assert (base / "etc/marker").read_text() == "own\n"
    noted = home.must("op", "log", "-n", "1", "--json").json()[0]
    assert noted["note"] == f"1 file of {base} changed as on {branch}"
    home.must("undo", str(noted["number"]))
    for words in (("diff", branch), ("apply", branch, "--dry-run")):
        assert home.must(*words, "--json").json()["base"] == str(base)


def test_a_tree_that_is_too_deep_is_refused_and_the_rest_can_be_told(home: Home) -> None:
    with session(home, "root", "--cwd", "/srv") as name:
        deep = "import os\nfor _ in range(80):\n  os.mkdir('d' * 250); os.chdir('d' * 250)"
        inside(
            home, name, f'unset HISTFILE; mkdir /srv/deep; cd /srv/deep; python3 -c "{deep}"; echo x > /srv/plain; cd /'
        )
        done = home.cli("diff", name)
        assert done.code == 125
        assert "more than 16384 characters" in done.stderr
        assert "next: name fewer of them: waypoint diff A B -- PATH" in done.stderr
        assert lines_of(home, name, "--", "/srv/plain") == ["A  /srv/plain"]
