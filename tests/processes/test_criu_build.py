"""Building Waypoint's own CRIU. The gate builds nothing: it applies the patches, and tests errors and the wheel."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from waypoint.linux.storage import filesystem
from waypoint.model.errors import HostLacks
from waypoint.setup import criu_build

MAX_LINES = 800  # of all patches together: each line is one that upstream does not maintain


def apply(source: Path, *patches: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-ec", criu_build.APPLY, "apply", str(source), *map(str, patches)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one patch instead of the real ones."""
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/10-one.patch").write_text("--- a/file\n+++ b/file\n@@ -1 +1 @@\n-one\n+1\n")
    monkeypatch.setattr(criu_build, "PATCHES", tmp_path / "patches")
    return tmp_path / "patches"


def test_the_key_differs_when_a_patch_is_changed_renamed_or_added(patches: Path) -> None:
    patch = patches / "10-one.patch"
    keys = [criu_build.key(), criu_build.key()]
    patch.write_text(patch.read_text().replace("+1", "+2"))
    keys.append(criu_build.key())
    keys.append((patch.rename(patches / "20-one.patch"), criu_build.key())[1])
    (patches / "30-two.patch").touch()
    keys.append(criu_build.key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all(re.fullmatch("[0-9a-f]{12}", key) for key in keys)


@pytest.mark.requires("patch")
def test_patches_are_applied_in_order_and_one_that_does_not_apply_is_named(patches: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_text("one\n")
    (patches / "20-two.patch").write_text("--- a/file\n+++ b/file\n@@ -1 +1 @@\n-two\n+2\n")
    (patches / "30-three.patch").write_text("--- a/file\n+++ b/file\n@@ -1 +1 @@\n-1\n+3\n")
    done = apply(tmp_path / "source", *criu_build.patches())
    assert done.returncode != 0
    assert "20-two.patch does not apply" in done.stderr
    assert "30-three.patch" not in done.stderr
    assert (tmp_path / "source/file").read_text() == "1\n"


@pytest.mark.requires("patch", "own-criu")
def test_the_patches_apply_to_the_source(tmp_path: Path) -> None:
    program = criu_build.built()
    assert program is not None
    subprocess.run(["tar", "-xf", program.parent / criu_build.TARBALL, "-C", tmp_path], check=True)
    done = apply(tmp_path / f"criu-{criu_build.VERSION}", *criu_build.patches())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_patch_has_a_number_and_a_short_head_and_all_together_are_short() -> None:
    total = 0
    for patch in criu_build.patches():
        assert re.fullmatch(r"[1-9][0-9]-[a-z0-9-]+\.patch", patch.name)
        text = patch.read_text()
        head = text[: text.index("\n--- ")].splitlines()
        assert 1 <= len(head) <= 12, patch
        total += len(text.splitlines()) - len(head)
    assert 0 < total <= MAX_LINES


def test_a_user_who_is_not_root_gets_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu_build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(HostLacks, match="only root"):
        criu_build.build(print)
    assert not (tmp_path / "cache").exists()


@pytest.mark.privileged
@pytest.mark.requires("apt-get")
def test_without_space_on_the_disk_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criu_build, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(filesystem, "free_bytes", lambda _: 1 << 20)
    with pytest.raises(HostLacks, match="no space left: 1 MiB are free there"):
        criu_build.build(print, mirror="http://127.0.0.1:9/debian")
    assert list(tmp_path.iterdir()) == []
