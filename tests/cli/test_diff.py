"""`waypoint diff`: files, processes and environment between captures, live sessions and the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Spawn, exit_status
from tests.collecting import collecting
from tests.homes import Home
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


CHANGE = """cd {}; rm -r d; mkdir d; touch d/new; sed -i 's/^7$/seven/' text; mv moved there; chmod 600 mode
printf 'a\\0b' > binary; ln -s /nowhere link; touch $'new\\nline' $'\\xff'"""


def test_the_changes_of_a_session_are_listed_as_what_they_are(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", CHANGE.format(project))
    lines = home.must("diff", branch, "--", str(project)).stdout.splitlines()
    assert [" ".join(line.replace(f"{project}/", "").split()) for line in lines] == [
        "A binary 3 B",
        "A d/new",
        "D d/old -1",
        "A link +1",
        "m mode mode 644 to 600",
        "D moved/",
        "D moved/in/",
        "D moved/in/file -1",
        "A new?line",
        "M text +1 -1",
        "R there/ from moved",
        "A there/in/",
        "A there/in/file +1",
        r"A \xff",
        "10 files changed, 3 lines inserted, 3 deleted",
    ]
    (project / "text").write_text("elsewhere\n")
    found = home.must("diff", branch, "--json", "--", str(project / "text")).json()
    assert (found["files"][0]["insertions"], found["files"][0]["deletions"]) == (20, 1), "the base is the machine now"
    assert (found["processes"], found["environment"]["added"]) == ({"added": [], "removed": []}, [])


def test_the_patch_of_a_session_applies_to_the_machine(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", CHANGE.format(project) + "; rm binary")
    patch = home.must("diff", branch, "--patch", "--", str(project)).raw
    copy = project / "copy"
    shutil.copytree(project, copy / str(project).lstrip("/"), ignore=shutil.ignore_patterns("copy"))
    subprocess.run(["git", "apply", "--unsafe-paths", f"--directory={copy}"], input=patch, cwd="/", check=True)
    shown = copy / str(project).lstrip("/")
    assert (shown / "text").read_text().splitlines()[6] == "seven"
    assert sorted(os.listdir(os.fsencode(shown))) == sorted(
        [b"d", b"link", b"mode", b"new\nline", b"text", b"there", b"\xff"]
    )


def test_captures_differ_in_files_processes_and_environment(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"cd {project}; export KEPT=1 CHANGED=1; sleep 100 & echo x > one")
    home.must("checkpoint", f"{branch}-1", "-b", branch)
    home.must("exec", "-b", branch, "--", "export CHANGED=2 NEW=1; kill %1; sleep 200 & rm one; echo y > two")
    home.must("checkpoint", f"{branch}-2", "-b", branch)
    found = home.must("diff", f"{branch}-1", f"{branch}-2", "--json").json()
    files = [(one["change"], os.path.basename(one["name"])) for one in found["files"]]
    assert [one for one in files if one[1] in ("one", "two")] == [("removed", "one"), ("added", "two")]
    assert found["processes"] == {"added": ["sleep 200"], "removed": ["sleep 100"]}
    assert found["environment"] == {"added": ["NEW"], "removed": [], "changed": ["CHANGED"]}
    back = home.must("diff", f"{branch}-2", f"{branch}-1", "--name-only").stdout.splitlines()
    assert {f"{project}/one", f"{project}/two"} <= set(back)
    same = home.must("diff", f"{branch}-2", branch, "--exit-code", "--", str(project))
    assert same.stdout == ""
    assert home.cli("diff", "machine", branch, "--exit-code", "--", f"{project}/two").code == 1
    reverse = home.must("diff", branch, "machine", "--", f"{project}/two").stdout
    assert reverse.startswith(f"D  {project}/two")
    assert (
        home.must("log", branch, "--json").json()[0]["capture"]
        == home.must("show", f"{branch}-2", "--json").json()["capture"]
    ), "a capture that is taken for a diff is not recorded"


def test_a_session_shows_itself_in_the_sdk(home: Home, client: Client, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"echo changed > {project}/d/old")
    (found,) = client.session(branch).diff(paths=[str(project)], patch=True)
    assert (found.kind, found.change, found.type, found.old_size, found.new_size) == ("file", "changed", "file", 4, 8)
    assert (found.patch or "").endswith("@@ -1 +1 @@\n-old\n+changed\n")


def test_wrong_requests_are_refused(home: Home, branch: str) -> None:
    with collecting() as row:
        for words, said in (
            (("nope",), "nothing has this name"),
            ((branch, branch), "it is compared with itself"),
            ((branch, "--stat", "--patch"), "--stat and --patch exclude each other"),
            (("machine",), "it is compared with itself"),
        ):
            with row(words):
                done = home.cli("diff", *words)
                assert (done.code, said in done.stderr) == (2, True), done.stderr


def test_the_terminal_gets_no_escape_sequences_of_a_session(
    home: Home, branch: str, project: Path, on_terminal: Spawn
) -> None:
    home.must("exec", "-b", branch, "--", rf"printf '\033]0;title\007\n' > {project}/text")
    terminal = on_terminal("diff", branch, "--patch", "--", str(project), env={"PAGER": "cat"})
    terminal.expect_exact(b"+?]0;title?")
    assert exit_status(terminal) == 0


def test_ignored_files_caches_and_logs_are_left_out_on_request(home: Home, branch: str, project: Path) -> None:
    script = """cd {}; mkdir -p src/build src/__pycache__ .venv; printf 'build/\\n!kept.log\\n' > src/.gitignore
    echo '*' > .venv/.gitignore; touch src/a.py src/build/b src/__pycache__/c src/kept.log other.log ':x' $'\\xff.log'
    mkdir -p pipe; mkfifo pipe/.gitignore; touch pipe/file; ln -s /etc/hostname src/link"""
    home.must("exec", "-b", branch, "--", script.format(project))
    lines = home.must("diff", branch, "--name-only", "--ignore", "--", str(project)).stdout.splitlines()
    shown = {line.removeprefix(f"{project}/") for line in lines}
    assert shown == {
        ":x",
        "pipe",
        "pipe/.gitignore",
        "pipe/file",
        "src",
        "src/.gitignore",
        "src/a.py",
        "src/kept.log",
        "src/link",
    }
    everything = home.must("diff", branch, "--name-only", "--ignore", "--no-ignore", "--", str(project)).stdout
    assert everything == home.must("diff", branch, "--name-only", "--", str(project)).stdout
    assert len(everything.splitlines()) > len(shown)


def test_two_captures_of_one_session_differ_where_it_changed_files_between(
    home: Home, branch: str, project: Path
) -> None:
    script = f"""cd {project}; mkdir -p many/{{a,b,c}}; touch many/{{a,b,c}}/{{1,2,3}}; echo 1 > many/a/1
    mkdir same; touch same/file; ln many/b/2 many/b/name; rm -r moved"""
    home.must("exec", "-b", branch, "--", script)
    home.must("checkpoint", f"{branch}-1", "-b", branch)
    changes = f"""cd {project}; echo 2 >> many/a/1; rm many/b/1; mv many/c many/d; echo x > many/b/2; mkdir moved
    touch moved/new; rm -r d; chmod 600 same/file; echo new > many/a/new"""
    home.must("exec", "-b", branch, "--", changes)
    home.must("checkpoint", f"{branch}-2", "-b", branch)

    def told(*words: str) -> list[str]:
        found = home.must("diff", *words, "--", str(project)).stdout.replace(f"{project}/", "")
        return [" ".join(line.split()) for line in found.splitlines()]

    assert told(f"{branch}-1", f"{branch}-2") == [
        "D d/",
        "D d/old -1",
        "M many/a/1 +1",
        "A many/a/new +1",
        "D many/b/1",
        "M many/b/2 +1",
        "M many/b/name +1",
        "D many/c/",
        "D many/c/1",
        "D many/c/2",
        "D many/c/3",
        "A many/d/",
        "A many/d/1",
        "A many/d/2",
        "A many/d/3",
        "A moved/",
        "A moved/new",
        "m same/file mode 644 to 600",
        "14 files changed, 4 lines inserted, 1 deleted",
    ]
    assert len(told(f"{branch}-2", f"{branch}-1")) == 19
    assert told(f"{branch}-2", branch) == []
