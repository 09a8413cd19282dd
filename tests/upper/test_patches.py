"""Patches in git's format: git itself applies them."""

import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waypoint.upper import patches, text_diff
from waypoint.upper.patches import File

pytestmark = [pytest.mark.requires("git")]

NAME = 'od"d\nnäme'
LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "é\r\n", "\n"]), max_size=12).map("".join)
TEXTS = st.builds(str.__add__, LINES, st.sampled_from(["", "end"]))


def apply_with_git(folder: Path, patch: str) -> None:
    if patch:
        subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=folder, input=patch.encode(), check=True)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=TEXTS, new=TEXTS, mode=st.sampled_from([0o644, 0o755]))
def test_git_applies_the_patch_of_any_two_texts(tmp_path: Path, old: str, new: str, mode: int) -> None:
    file = tmp_path / NAME
    file.write_bytes(old.encode())
    file.chmod(0o644)
    before, after = File(stat.S_IFREG | 0o644, old.encode()), File(stat.S_IFREG | mode, new.encode())
    found = patches.compare(NAME, before, after, with_patch=True)
    apply_with_git(tmp_path, found.patch)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (new.encode(), mode)
    body = [line for line in found.patch.split("\n") if line[:3] not in ("+++", "---")]
    assert found.insertions == sum(line.startswith("+") for line in body)
    assert found.deletions == sum(line.startswith("-") for line in body)


def test_added_removed_and_retyped_files_are_patched(tmp_path: Path) -> None:
    text, link = File(stat.S_IFREG | 0o755, b"one\ntwo\n"), File(stat.S_IFLNK | 0o777, b"/nowhere")
    apply_with_git(tmp_path, patches.compare("file", None, text, with_patch=True).patch)
    assert (tmp_path / "file").read_text() == "one\ntwo\n"
    assert (tmp_path / "file").stat().st_mode & 0o100
    found = patches.compare("file", text, link, with_patch=True)
    assert found[:2] == (1, 2)
    apply_with_git(tmp_path, found.patch)
    assert (tmp_path / "file").readlink() == Path("/nowhere")
    apply_with_git(tmp_path, patches.compare("file", link, None, with_patch=True).patch)
    assert list(tmp_path.iterdir()) == []


def test_binary_large_and_unreadable_files_have_no_lines() -> None:
    for content in (b"a\0b", b"\xff", b"x" * (patches.MOST_BYTES + 1), None):
        found = patches.compare("file", None, File(stat.S_IFREG | 0o644, content), with_patch=True)
        assert found == (
            None,
            None,
            "diff --git a/file b/file\nnew file mode 100644\nBinary files /dev/null and b/file differ\n",
        )


def test_two_large_texts_without_a_common_line_take_no_search() -> None:
    one, other = (b"".join(b"%s %d\n" % (word, number) for number in range(60_000)) for word in (b"a", b"b"))
    found = text_diff.compare(b"same\n" + one, b"same\n" + other)
    assert (found.insertions, found.deletions, found.hunks[0]) == (60_000, 60_000, b"@@ -1,60001 +1,60001 @@\n")
