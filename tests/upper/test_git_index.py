"""What a git index says, as git itself writes it."""

import os
import subprocess
from pathlib import Path

import pytest

from waypoint.upper.git_index import digest, is_index

pytestmark = [pytest.mark.requires("git")]


def git(folder: Path, *words: str) -> bytes:
    """Run git in the folder. Returns the index."""
    subprocess.run(["git", "-C", folder, "-c", "user.name=T", "-c", "user.email=t@x", *words], check=True)
    index = folder / ".git/index"
    return index.read_bytes() if index.exists() else b""


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("ids", ["sha1", "sha256"])
def test_only_what_is_staged_counts(tmp_path: Path, version: str, ids: str) -> None:
    for number in range(50):
        (tmp_path / f"{'x' * number}file").write_text(f"{number}\n")
    git(tmp_path, "init", "-q", f"--object-format={ids}")
    git(tmp_path, "add", "-A")
    first = git(tmp_path, "update-index", "--index-version", version)
    assert digest(first) != b""
    git(tmp_path, "commit", "-qm", "one")
    os.utime(tmp_path / "file", (1, 1))
    refreshed = git(tmp_path, "status", "-s")
    assert refreshed != first
    assert digest(refreshed) == digest(first)
    (tmp_path / "file").write_text("staged\n")
    staged = git(tmp_path, "add", "-A")
    intended = git(tmp_path, "rm", "--cached", "-q", "xfile")
    (tmp_path / "later").touch()
    extended = git(tmp_path, "add", "-N", "later")  # its entry has more flags
    assert len({digest(one) for one in (first, staged, intended, extended)}) == 4
    for broken in (b"", first[:40], first[:-1], b"X" + first[1:]):
        assert digest(broken) == b""


def test_the_index_of_a_repository_submodule_or_worktree_is_recognised() -> None:
    assert all(map(is_index, ("a/.git/index", "a/.git/modules/b/index", "a/.git/worktrees/b/index")))
    assert not any(map(is_index, ("a/index", "a/.git/indexes", "a/.gitmodules/index")))
