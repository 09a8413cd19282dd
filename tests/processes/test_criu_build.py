"""Building Waypoint's own CRIU. The gate builds nothing: it applies the patches, and tests errors and the wheel."""

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.processes.mirror import kept_mirror
from tests.processes_now import processes, words_of
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import filesystem
from waypoint.model.conditions import CONDITIONS
from waypoint.model.errors import HostLacks
from waypoint.processes.criu.rpc import Criu
from waypoint.setup import criu_build, rows
from waypoint.setup.debian_packages import Archive, find_keyring, find_mirror
from waypoint.setup.trials import trial

MAX_LINES = 1200  # that all patches together change: each is one that upstream does not maintain


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
        total += sum(line.startswith(("+", "-")) for line in text.splitlines()[len(head) :])
    assert 0 < total <= MAX_LINES


def test_doctor_knows_what_each_patch_mends() -> None:
    """Except patches for the log and for speed."""
    names = {patch.name for patch in criu_build.patches() if patch.name < "40"}
    assert rows.MENDED.keys() == names, "next: docs/development.md, A new patch of CRIU"
    assert {row.code for row in rows.unpatched()} == set(rows.MENDED.values()) <= CONDITIONS.keys()


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


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a program in the machine's cache."""
    monkeypatch.setattr(criu_build, "CACHE", tmp_path / "cache")
    folder = tmp_path / f"cache/criu-{criu_build.VERSION}-{criu_build.key()}"
    folder.mkdir(parents=True)
    (folder / "criu").write_text("#!/bin/sh\necho it runs\n")
    (folder / "criu").chmod(0o755)
    with tarfile.open(folder / criu_build.TARBALL, "w:xz") as source:
        licence = tarfile.TarInfo(f"criu-{criu_build.VERSION}/COPYING")
        licence.size = 3
        source.addfile(licence, io.BytesIO(b"GPL"))
    (folder / "SHA256SUMS").write_text("".join(f"{line}\n" for line in criu_build.sums(folder)))
    return folder


def install_wheel(wheel: Path, target: Path) -> Path:
    """Install the wheel into the folder `target`. Returns the path of its program."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--root-user-action=ignore", "--target", str(target), str(wheel)], check=True, timeout=200)
    found = criu_build.packaged()
    assert found == (target / "waypoint_criu/criu", criu_build.key())
    return found[0]


def test_the_wheel_can_be_installed_and_is_found(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = criu_build.write_wheel(tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = archive.read(next(name for name in names if name.endswith("/RECORD"))).decode()
    assert [line.split(",")[0] for line in record.splitlines()] == names
    assert f"waypoint_criu/source/{criu_build.TARBALL}" in names
    assert {f"waypoint_criu/source/patches/{patch.name}" for patch in criu_build.patches()} <= set(names)
    monkeypatch.syspath_prepend(tmp_path / "site")
    program = install_wheel(wheel, tmp_path / "site")
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "it runs\n"
    assert [path.read_text() for path in (tmp_path / "site").glob("*.dist-info/licenses/COPYING")] == ["GPL"]


def test_old_programs_leave_the_cache(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in range(criu_build.KEPT + 2):
        folder = built.with_name(f"criu-{age}")
        folder.mkdir()
        os.utime(folder, ns=(age, age))
    built.with_name(".criu-build-killed").mkdir()
    criu_build.sweep()
    kept = {f"criu-{age}" for age in range(3, criu_build.KEPT + 2)}
    assert {path.name for path in built.parent.iterdir()} == {built.name, *kept}


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kept_mirror(find_mirror(), tmp_path_factory.mktemp("mirror")) as address:
        yield address


# A program that builds into the cache argv[2], and kills itself at the first message that begins with argv[3].
KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from waypoint.setup import criu_build
criu_build.CACHE = Path(sys.argv[2])
def say(text):
    if text.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
criu_build.build(say, mirror=sys.argv[4])
"""


@pytest.mark.soak(part="setup")
@pytest.mark.privileged
@pytest.mark.requires("apt-get", "network")
class TestRealBuilds:
    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(criu_build, "CACHE", tmp_path / "cache")
        return tmp_path / "cache"

    def test_a_build_is_complete_and_serves_everybody_who_waits(
        self, mirror: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[str] = []
        with ThreadPoolExecutor() as threads:
            asked = [threads.submit(criu_build.build, said.append, mirror=mirror) for _ in range(2)]
            program, again = (one.result() for one in asked)
        assert program == again == criu_build.built()
        assert len([line for line in said if line.startswith("built")]) == 1
        assert [path.name for path in cache.iterdir()] == [program.parent.name]
        assert Criu(program).version_and_key() == ((4, 2, 1), criu_build.key())
        assert (
            subprocess.run([program, "--version"], env={"LD_PRELOAD": "/nothing"}, check=True, stderr=-1).stderr == b""
        )
        wheel = criu_build.write_wheel(tmp_path / "dist")
        monkeypatch.syspath_prepend(tmp_path / "site")
        packaged = install_wheel(wheel, tmp_path / "site")
        assert rows.passed(trial(packaged, tmp_path))

    def test_without_a_mirror_nothing_is_left(self, cache: Path) -> None:
        with pytest.raises(HostLacks, match=r"Connection refused|Unable to connect"):
            criu_build.build(print, mirror="http://127.0.0.1:9/debian")
        assert not cache.exists()

    def test_a_patch_that_does_not_apply_is_named(
        self, mirror: str, cache: Path, patches: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(HostLacks, match=r"10-one\.patch does not apply"):
            criu_build.build(print, mirror=mirror)
        assert not cache.exists()

    def test_a_killed_build_leaves_nothing_that_the_next_does_not_remove(self, mirror: str, cache: Path) -> None:
        command = [sys.executable, "-c", KILLED, str(ROOT), str(cache), "building", mirror]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert criu_build.built() is None
        with subprocess.Popen([*command[:5], "never", mirror]) as process:
            wait_until(lambda: list(cache.glob(".criu-build-*/root/tmp/source/criu/*.o")), "it compiles", PATIENCE_S)
            process.kill()
        wait_until(lambda: not [one for one in processes() if str(cache) in str(words_of(one.pid))], "all have ended")
        criu_build.build(print, mirror=mirror)
        assert [path.name for path in cache.iterdir()] == [f"criu-{criu_build.VERSION}-{criu_build.key()}"]

    @pytest.mark.parametrize("suite", ["sid", "experimental"])
    def test_the_patches_apply_to_the_newest_release(self, suite: str, tmp_path: Path) -> None:
        """Expected to fail at a new release of CRIU: the message names the patch to be changed."""
        (tmp_path / "apt").mkdir()
        archive = Archive(tmp_path / "apt", mirror=find_mirror(), suite=suite, keyring=find_keyring())
        line = f"deb-src [signed-by={find_keyring()}] {find_mirror()} {suite} main\n"
        (tmp_path / "apt/sources.list").write_text(line)
        archive.update(print)
        command = ["apt-get", "-q", "-c", tmp_path / "apt/apt.conf", "source", "--download-only", "--tar-only", "criu"]
        fetched = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
        if "404" in fetched.stderr:
            pytest.skip(f"the mirror does not have the source of CRIU in {suite}")
        assert fetched.returncode == 0, fetched.stderr
        (source,) = tmp_path.glob("criu_*.orig.tar.*")
        (tmp_path / "source").mkdir()
        subprocess.run(["tar", "-xf", source, "--strip-components=1", "-C", tmp_path / "source"], check=True)
        done = apply(tmp_path / "source", *criu_build.patches())
        assert done.returncode == 0, f"{source.name}: {done.stdout}{done.stderr}"
