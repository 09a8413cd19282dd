"""`waypoint apply --as-patch` and `--git-branch`: changes for a git repository of the machine."""

import subprocess
from pathlib import Path

import pytest

from tests.homes import Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "git")]

CHANGE = """cd {}; sed -i 's/^7$/seven/' text; printf 'a\\0b' > binary; echo new > 'd/new "file"'; chmod +x mode
rm d/old; touch ignored.o; git add -A; git -c user.name=S -c user.email=s@x commit -qm inside
git push -q . HEAD:refs/heads/pushed"""


def git(repository: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=T", "-c", "user.email=t@x", "-C", repository, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(project: Path) -> Path:
    (project / ".gitignore").write_text("*.o\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "base")
    return project


def test_the_changes_become_a_commit_beside_the_working_tree(home: Home, repository: Path, branch: str) -> None:
    before = git(repository, "rev-parse", "HEAD").strip()
    (repository / "moved/in/file").write_text("not committed\n")
    home.must("exec", "-b", branch, "--", CHANGE.format(repository))
    done = home.must("apply", branch, "--git-branch", "fix", cwd=repository)
    assert done.stdout == f"fix  5 files in {repository}\n"
    assert git(repository, "diff", "--name-status", "-z", "HEAD", "fix").split("\0")[:-1] == [
        *("A", "binary"),
        *("A", 'd/new "file"'),
        *("D", "d/old"),
        *("M", "mode"),
        *("M", "text"),
    ]
    assert git(repository, "rev-parse", "fix~1").strip() == before
    assert git(repository, "cat-file", "-p", "fix:binary") == "a\0b"
    assert git(repository, "ls-tree", "fix", "mode").startswith("100755 ")
    assert git(repository, "status", "--short") == " M moved/in/file\n"
    assert git(repository, "branch", "--list", "pushed") == "", "a push inside changes only the session's copy"
    git(repository, "fsck", "--strict")
    for name, code, said in (("fix", 4, "it exists"), ("a..b", 2, "git does not accept this name")):
        done = home.cli("apply", branch, "--git-branch", name, "--", str(repository))
        assert (done.code, said in done.stderr) == (code, True), done.stderr


def test_a_patch_has_paths_relative_to_the_repository(home: Home, repository: Path, branch: str) -> None:
    home.must("exec", "-b", branch, "--", CHANGE.format(repository))
    patch = home.must("apply", branch, "--as-patch", "--", str(repository / "text"), str(repository / "d")).raw
    subprocess.run(["git", "-C", repository, "apply", "--index"], input=patch, check=True)
    assert git(repository, "diff", "--cached", "--numstat").splitlines() == [
        '1\t0\t"d/new \\"file\\""',
        "0\t1\td/old",
        "1\t1\ttext",
    ]


def test_changes_of_both_sides_are_merged(home: Home, repository: Path, branch: str) -> None:
    text, mode = repository / "text", repository / "mode"
    home.must("exec", "-b", branch, "--", f"cd {repository}; sed -i 's/^7$/seven/' text; echo session > mode")
    text.write_text(text.read_text().replace("15\n", "fifteen\n"))
    mode.write_text("machine\n")
    done = home.cli("apply", branch, "--merge", "--json", "--", str(repository))
    assert (done.code, [(one["path"], one["said"]) for one in done.json()["conflicts"]]) == (
        6,
        [(str(mode), "it was changed on the machine, and cannot be merged")],
    )
    home.must("apply", branch, "--merge", "--", str(text))
    lines = text.read_text().splitlines()
    assert (lines[6], lines[14], len(lines)) == ("seven", "fifteen", 20)
    home.must("undo")
    assert text.read_text().splitlines()[6] == "7"


def test_a_place_without_a_repository_is_refused(home: Home, project: Path, branch: str) -> None:
    done = home.cli("apply", branch, "--git-branch", "fix", "--", str(project))
    assert (done.code, "it is not the root of a git repository" in done.stderr) == (2, True), done.stderr


def test_a_commit_in_the_session_is_applied_and_taken_back_although_git_looks_meanwhile(
    home: Home, repository: Path, branch: str
) -> None:
    git(repository, "checkout", "-q", "-b", "side")
    head = git(repository, "rev-parse", "HEAD")
    home.must("exec", "-b", branch, "--", CHANGE.format(repository))
    (repository / "moved/in/file").touch()
    assert git(repository, "status", "--short") == "", "git writes its index because of the new time"
    home.must("apply", branch, "--", str(repository))
    assert git(repository, "status", "--short", "--branch") == "## side\n"
    home.must("exec", "-b", branch, "--", f"cd {repository}; echo x > staged; git add -A")
    home.must("apply", branch, "--", str(repository))
    assert git(repository, "status", "--short") == "A  staged\n"
    home.must("undo")
    assert git(repository, "status", "--short") == ""
    home.must("undo")
    assert (git(repository, "status", "--short"), git(repository, "rev-parse", "HEAD")) == ("", head)
    git(repository, "fsck", "--strict")
    (repository / "text").write_text("staged on the machine\n")
    git(repository, "add", "text")
    done = home.cli("apply", branch, "--json", "--", str(repository))
    assert f"{repository}/.git/index" in [one["path"] for one in done.json()["conflicts"]]
    assert f"apply {branch} --git-branch NEW -- {repository}" in done.json()["error"]["next"]
