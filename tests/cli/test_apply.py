"""`waypoint apply`, its conflicts, and its undo."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Spawn, exit_status
from tests.collecting import collecting
from tests.homes import Home
from tests.projects import CHANGE, beside, listed, listed_in
from tests.upper.overlays import picture
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


def test_the_changes_reach_the_machine_and_undo_takes_them_back(home: Home, branch: str, project: Path) -> None:
    linked = project.with_name(f"{project.name}-linked")
    linked.hardlink_to(project / "text")
    before = picture(project, with_times=True)
    home.must("exec", "-b", branch, "--", CHANGE.format(project))
    planned = home.must("apply", branch, "--dry-run", "--json", "--", str(project)).json()
    assert (planned["applied"], planned["operation"], planned["conflicts"]) == (False, None, [])
    assert picture(project, with_times=True) == before
    home.must("exec", "-b", branch, "--", f"touch {project}/../waypoint-outside-$$ && echo {project}")
    done = home.must("apply", branch, "--json", "--", str(project)).json()
    assert (done["applied"], done["count"]) == (True, planned["count"])
    assert listed(project).split(b"\n") == listed_in(home, branch, project).split(b"\n")
    assert list(project.parent.glob("waypoint-outside-*")) == [], "it was not among the chosen paths"
    assert beside(home) == []
    assert home.must("apply", branch, "--", str(project)).stderr.startswith("nothing to apply")

    assert f"take back the changes of {done['count']} files" in home.must("op", "log", "-n", "3").stdout
    home.must("undo", str(done["operation"]))
    assert picture(project, with_times=True) == before
    undo = home.must("op", "log", "-n", "1", "--json").json()[0]
    home.must("undo", str(undo["number"]))
    assert listed(project) == listed_in(home, branch, project), "the undo was undone"
    home.must("undo", str(done["operation"]))
    assert picture(project, with_times=True) == before
    assert linked.samefile(project / "text")
    linked.unlink()


def test_files_that_the_machine_has_changed_are_conflicts(home: Home, branch: str, project: Path) -> None:
    text, old = project / "text", project / "d/old"
    home.must("exec", "-b", branch, "--", f"cd {project}; echo session >> text; rm d/old; echo x > mode")
    text.write_text("machine\n")
    old.write_text("machine\n")
    before = picture(project, with_times=True)
    last = home.must("op", "log", "-n", "1", "--json").json()[0]["number"]
    done = home.cli("apply", branch, "--json", "--", str(project))
    found = done.json()
    assert home.must("op", "log", "-n", "1", "--json").json()[0]["number"] == last, "the next undo would undo it"
    assert (done.code, found["error"]["code"], found["conflict_count"]) == (6, "conflicts", 2)
    assert {one["path"]: one["said"] for one in found["conflicts"]} == dict.fromkeys(
        [str(old), str(text)], "it was changed on the machine"
    )
    assert picture(project, with_times=True) == before
    home.must("apply", branch, "--ours", "--", str(project))
    assert (text.read_text(), old.read_text(), (project / "mode").read_text()) == ("machine\n", "machine\n", "x\n")
    done = home.must("apply", branch, "--theirs", "--", str(project))
    assert f"this machine had changed it, too: {text}" in done.stderr
    assert (text.read_text().endswith("20\nsession\n"), old.exists()) == (True, False)
    home.must("undo")
    assert (text.read_text(), old.read_text()) == ("machine\n", "machine\n")
    home.must("apply", branch, "--theirs", "--", str(text))
    assert home.cli("exec", "-b", branch, "--", "waypoint undo").code != 0, "the session changed the machine's files"
    assert text.read_text().endswith("session\n")
    text.write_text("later\n")
    done = home.cli("undo")
    assert (done.code, "it was changed after that" in done.stderr) == (6, True), done.stderr
    assert text.read_text() == "later\n"


def test_a_file_that_the_machine_has_removed_is_a_conflict_and_a_renamed_one_is_none(
    home: Home, branch: str, project: Path
) -> None:
    home.must("exec", "-b", branch, "--", f"cd {project}; echo x >> text; mv mode renamed")
    (project / "text").unlink()
    (project / "added").touch()
    done = home.cli("apply", branch, "--json", "--", str(project))
    assert [(one["path"], one["said"]) for one in done.json()["conflicts"]] == [
        (f"{project}/text", "it was removed on the machine")
    ]


def test_a_branch_applies_again_what_it_has_changed_since(home: Home, branch: str, project: Path) -> None:
    for number in range(3):
        home.must("exec", "-b", branch, "--", f"cd {project}; echo {number} >> text; mv mode* mode{number}")
        home.must("apply", branch, "--", str(project))
        assert (project / "text").read_text().split()[20:] == [str(one) for one in range(number + 1)]
        assert (project / f"mode{number}").exists()
    home.must("fork", branch, f"{branch}-f")
    home.must("exec", "-b", f"{branch}-f", "--", f"echo fork >> {project}/text")
    home.must("apply", f"{branch}-f", "--", str(project))
    home.must("exec", "-b", branch, "--", f"echo first >> {project}/text")
    assert home.cli("apply", branch, "--", str(project)).code == 6, "the fork has changed it, which the branch lacks"


def test_programs_with_other_rights_need_a_permission(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"cp /bin/true {project}/su; chmod 4755 {project}/su")
    done = home.cli("apply", branch, "--theirs", "--", str(project))
    assert (done.code, "--allow-special applies it" in done.stderr) == (6, True)
    home.must("apply", branch, "--allow-special", "--", str(project))
    assert (project / "su").stat().st_mode & 0o7777 == 0o4755


def test_a_checkpoint_of_an_ended_session_is_applied(home: Home, client: Client, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"echo kept > {project}/text")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("exec", "-b", branch, "--", f"echo later > {project}/text")
    home.must("stop", "--files", branch)
    found = client.history.apply(f"{branch}-c", paths=[str(project)])
    assert [(one.change, one.name) for one in found.changes] == [("changed", f"{project}/text")]
    assert (project / "text").read_text() == "kept\n"


def test_a_moved_folder_is_applied_while_its_session_runs(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"cd {project}; mv moved there")
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    done = home.cli("apply", f"{branch}-c", "--", str(project))
    assert (done.code, "apply the branch while its session runs" in done.stderr) == (6, True), done.stderr
    home.must("apply", branch, "--", str(project))
    assert (project / "there/in/file").read_text() == "1\n"
    assert home.must("exec", "-b", branch, "--", f"cat {project}/there/in/file").stdout == "1\n"


def test_on_a_terminal_the_plan_is_shown_first(home: Home, branch: str, project: Path, on_terminal: Spawn) -> None:
    home.must("exec", "-b", branch, "--", f"echo x > {project}/text")
    for answer, code, content in (("n", 130, "1\n"), ("y", 0, "x\n")):
        terminal = on_terminal("apply", branch, "--", str(project))
        terminal.expect_exact(f"{project}/text".encode())
        terminal.expect_exact(b"Apply this to / of this machine? [y/N]: ")
        home.must("exec", "-b", branch, "--", f"echo not shown > {project}/text; touch {project}/not-shown-{answer}")
        terminal.sendline(answer)
        assert exit_status(terminal) == code
        assert (project / "text").read_text().startswith(content)
        assert list(project.glob("not-shown-*")) == [], "only what the plan has shown is applied"
        home.must("exec", "-b", branch, "--", f"echo x > {project}/text; rm {project}/not-shown-*")
    home.must("exec", "-b", branch, "--", f"echo later > {project}/text")
    home.must("apply", branch, "--", str(project))
    assert (project / "text").read_text() == "later\n", "the branch knows what it has applied"


def test_wrong_requests_are_refused(home: Home, branch: str) -> None:
    with collecting() as row:
        for words, said in (
            (("nope",), "nothing has this name"),
            ((branch, "--ours", "--theirs"), "--ours and --theirs exclude each other"),
        ):
            with row(words):
                done = home.cli("apply", *words)
                assert (done.code, said in done.stderr) == (2, True), done.stderr


def test_a_read_only_target_stays_as_it_is(home: Home, branch: str, project: Path) -> None:
    home.must("exec", "-b", branch, "--", f"echo x > {project}/text; echo x > {project}/d/old")
    subprocess.run(["chattr", "+i", project / "text"], check=True)
    try:
        before = picture(project, with_times=True)
        done = home.cli("apply", branch, "--theirs", "--", str(project))
        assert (done.code, "nothing was changed" in done.stderr) == (3, True), done.stderr
        assert picture(project, with_times=True) == before
    finally:
        subprocess.run(["chattr", "-i", project / "text"], check=True)
    home.must("apply", branch, "--", str(project / "d"))
