"""What one home exports, another one takes in: the same image, which is restored there with its processes."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import inside
from tests.cli.typing_in import typed
from tests.corner import corner as corner
from tests.homes import Completed, Home, open_home
from tests.store.content.test_kept_processes import KEPT, PASSPHRASE, SIGNER
from tests.waiting import PATIENCE_S
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with a live session, and two checkpoints of it, to one of which something is attached."""
    attached = tmp_path_factory.mktemp("attached")
    (attached / "model").mkdir()
    (attached / "model/weights").write_bytes(os.urandom(300_000))
    os.setxattr(attached / "model/weights", "user.kind", b"v")
    with open_home("origin") as home:
        home.must("shell", "-d", "main", "--cwd", "/srv")
        inside(home, "main", "word=kept; echo mine > /srv/made; chmod 4711 /srv/made; sleep 1000 & sleep 0")
        inside(home, "main", "head -c 64 /dev/urandom > /srv/noise")  # which cannot be compressed
        home.must("checkpoint", "cold", "-b", "main")
        inside(home, "main", "rm /etc/hostname; touch /dev/shm/x")
        home.must("checkpoint", "warm", "-b", "main", "--attach", f"model={attached}/model")
        yield home


@pytest.fixture(scope="module")
def other() -> Iterator[Home]:
    with open_home("other") as home:
        yield home


@pytest.fixture(scope="module")
def exported(origin: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "warm.wpx"
    assert origin.must("layer", "list", "warm", "--json").json()[0]["digest"] is None
    ours, theirs = os.openpty()
    with subprocess.Popen(origin.argv("export", "warm", str(path)), env=origin.env, stderr=theirs) as exporting:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
            while piece := os.read(ours, 1 << 16):
                said += piece
    os.close(ours)
    assert exporting.returncode == 0
    drawn, _, told = said.rpartition(b"\r\x1b[K")
    assert b"\r\x1b[Kexport  " in drawn
    assert b"neither encrypted nor signed" in told
    return path


def kept(home: Home) -> tuple[set[str], int]:
    """The captures, and the size of the store."""
    client = Client(home.path)
    return {one.capture for one in client.history.log(all=True)}, client.disk.du().stored_bytes


def refused(home: Home, *words: str, code: int, said: str, step: str = "", stdin: bytes | None = None) -> Completed:
    """A command that must fail, and leave nothing."""
    before = kept(home)
    done = home.cli(*words, stdin=stdin)
    assert (done.code, said in done.stderr, step in done.stderr) == (code, True, True), done.stderr
    assert kept(home) == before
    return done


def test_it_is_the_same_image_and_its_programs_go_on(origin: Home, other: Home, exported: Path, tmp_path: Path) -> None:
    assert exported.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(exported.parent) == [exported.name]
    shown = origin.must("show", "warm", "--json").json()
    assert shown["durable"] is True
    found = other.must("import", str(exported), "--json").json()
    assert (found["image"], found["images"], found["new"], found["left_out"]) == (shown["image"], 2, 2, [])
    here = other.must("show", "warm", "--json").json()
    same = ("image", "capture", "parents", "tier", "created", "base", "user", "degraded", "environment", "machine")
    assert {name: here[name] for name in same} == {name: shown[name] for name in same}
    assert not (other.path / "hot" / here["capture"]).exists()
    check_attached(origin, other, tmp_path / "back")
    said, step = "its branch, main, is not in this home", "name what to compare it with, or what is under it"
    refused(other, "diff", "warm", code=2, said=said, step=f"{step}: waypoint diff warm --machine\n")
    assert "A  /srv/made\n" in other.must("diff", "warm", "--machine", "--", "/srv").stdout
    plan = ("apply", "warm", "--dry-run", "--", "/etc/hostname")
    origin.must(*plan)
    assert "conflict: /etc/hostname: it is another one on the machine" in other.cli(*plan).stderr
    other.must("fork", "warm", "copy")
    ask = "echo $word; cat /srv/made; stat -c %a /srv/made; ls /dev/shm; jobs; test ! -e /etc/hostname"
    expected = "kept\nmine\n4711\nx\n[1]+  Running                 sleep 1000 &\n"
    assert inside(other, "copy", ask) == expected
    # Each home has ids of its own for the users of its sessions.
    ids = {home: inside(home, branch, "cat /proc/self/uid_map") for home, branch in ((origin, "main"), (other, "copy"))}
    assert ids[origin] != ids[other]
    other.must("restore", here["parents"][0], "-b", "earlier")
    assert inside(other, "earlier", "cat /etc/hostname; jobs").endswith("sleep 1000 &\n")
    other.must("checkpoint", "further", "-b", "copy")
    done = other.must("export", "further", "-")
    found = origin.must("import", "-", stdin=done.raw).stdout
    assert "with 2 that it goes on from: 1 new" in found
    origin.must("rm", "further")
    again = other.must("import", str(exported), "--as", "again", "--json").json()
    assert (again["capture"], again["new"], again["added_bytes"]) == (here["capture"], 0, 0)
    last = other.must("op", "log", "-n", "1", "--json").json()[0]
    other.must("undo", str(last["number"]))
    assert other.cli("show", "again").code == 2
    assert other.must("verify", "--read-data", "--json").json()["problems"] == []


def check_attached(origin: Home, other: Home, back: Path) -> None:
    """What is attached has come, too, and has the same digests."""
    theirs, ours = (home.must("show", "warm", "--json").json()["layers"] for home in (origin, other))
    assert {kind: layer and layer["digest"] for kind, layer in theirs.items()} == {
        kind: layer and layer["digest"] for kind, layer in ours.items()
    }
    lists = [home.must("layer", "list", "warm", "--json").json() for home in (origin, other)]
    assert lists[0] == lists[1]
    assert (lists[0][0]["digest"], lists[0][0]["size_bytes"]) == (theirs["model"]["digest"], 300_000)
    assert {len(theirs[kind]["digest"]) for kind in ("files", "processes", "model")} == {64}
    other.must("layer", "get", "warm", "model", str(back))
    assert (back / "weights").stat().st_size == 300_000
    assert os.getxattr(back / "weights", "user.kind") == b"v"


def test_what_is_left_out_is_said(origin: Home, other: Home, tmp_path: Path) -> None:
    path = str(tmp_path / "alone.wpx")
    for name in ("before", "after"):
        origin.must("checkpoint", name, "-b", "main")
    assert "left out: what it goes on from (--alone)" in origin.must("export", "after", path, "--alone").stderr
    assert other.must("import", path, "--as", "alone").stderr == "left out: 1 that it goes on from\n"
    whole = origin.must("export", "main", str(tmp_path / "main.wpx"), "--json").json()
    assert (whole["encrypted"], whole["signed"], whole["left_out"]) == (False, False, [])
    refused(
        other,
        "import",
        str(tmp_path / "main.wpx"),
        code=2,
        said="it has no name",
        step="give it one: waypoint import FILE --as NAME",
    )
    other.must("import", str(tmp_path / "main.wpx"), "--as", "tip")


def test_a_name_that_is_taken_and_a_file_that_is_not_whole(other: Home, exported: Path, tmp_path: Path) -> None:
    other.must("import", str(exported), "--as", "taken")
    refused(other, "import", str(exported), "--as", "taken", code=4, said="there is a checkpoint of this name")
    content = exported.read_bytes()
    wrong = {
        content[: len(content) // 2]: "it was cut off",
        content + b"\0": "there is something behind its end",
        b"": "it is empty",
        b"PK\3\4" + bytes(100): "it does not begin as an export",
        content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]: "",
    }
    for number, (altered, said) in enumerate(wrong.items()):
        (tmp_path / "altered").write_bytes(altered)
        words = ("import", str(tmp_path / "altered"), "--as", f"altered-{number}")
        refused(other, *words, code=10, said=said, step="have it exported and copied again")
    refused(other, "import", str(tmp_path / "no"), code=2, said="No such file", step="name a file that you may read")


def test_it_is_taken_only_from_whom_it_should_be(origin: Home, other: Home, exported: Path, tmp_path: Path) -> None:
    key, public, stranger = (str(tmp_path / name) for name in ("key.pem", "key.pub", "id"))
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", stranger], check=True)
    path = str(tmp_path / "signed.wpx")
    assert origin.must("export", "cold", path, "--sign", key, "--json").json()["signed"] is True
    found = other.must("import", path, "--as", "signed", "--require-signature", public, "--json").json()
    assert len(found["signer"]) == 64
    asked = ("--as", "unsigned", "--require-signature", public)
    step = "have who made it sign it: waypoint export --sign KEYFILE"
    refused(other, "import", str(exported), *asked, code=10, said="it has no signature", step=step)
    origin.must("export", "cold", path, "--force", "--sign", stranger)
    refused(other, "import", path, *asked, code=10, said="it was signed with another key", step=step)
    more = "make it from the private one: openssl pkey -in KEYFILE -pubout -out FILE"
    refused(other, "import", path, *asked[:3], key, code=2, said="it is no public key", step=more)
    done = origin.cli("export", "cold", str(tmp_path / "none.wpx"), "--sign", public)
    assert (done.code, "make one: openssl genpkey -algorithm ed25519 -out FILE" in done.stderr) == (2, True)
    assert not (tmp_path / "none.wpx").exists()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_a_passphrase_keeps_it_from_others(origin: Home, other: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n")
    (tmp_path / "wrong").write_text("open barley\n")
    (tmp_path / "empty").write_text("")
    path, secret = str(tmp_path / "sealed.wpx"), ("--passphrase-file", str(tmp_path / "secret"))
    noise = origin.must("cat", "cold:/srv/noise").raw
    assert "encrypted" in origin.must("export", "cold", path, *secret).stderr
    assert noise not in Path(path).read_bytes()
    origin.must("export", "cold", str(tmp_path / "plain.wpx"))
    assert noise in (tmp_path / "plain.wpx").read_bytes()
    step = "give the passphrase that it was made with: --passphrase-file FILE, or --passphrase"
    refused(other, "import", path, "--as", "sealed", code=3, said="there is no passphrase", step=step)
    for name, code, way in (("wrong", 3, step), ("empty", 2, "name a file that has one")):
        words = ("import", path, "--as", "sealed", "--passphrase-file", str(tmp_path / name))
        refused(other, *words, code=code, said="passphrase", step=way)
    other.must("import", path, "--as", "sealed", *secret)
    path = str(tmp_path / "typed.wpx")
    assert typed(origin, "export", "cold", path, "--passphrase", answers=["\x03"]) == (130, "\r\n")
    code, said = typed(origin, "export", "cold", path, "--passphrase", answers=["open sesame"] * 2)
    assert (code, "open sesame" in said, ", encrypted" in said) == (0, False, True), said
    code, said = typed(other, "import", path, "--as", "typed", answers=["open sesame"])
    assert (code, "open sesame" in said, "typed  capture " in said) == (0, False, True), said
    refused(other, "import", path, "--as", "unasked", code=3, said="there is no passphrase", step=step)


def test_what_reaches_out_of_its_session_is_not_taken_unasked(origin: Home, other: Home, tmp_path: Path) -> None:
    origin.must("shell", "-d", "bound", "--bind", f"{tmp_path}:/mnt")
    path = str(tmp_path / "bound.wpx")
    origin.must("stop", "bound", "--checkpoint", "bound-kept")
    origin.must("export", "bound-kept", path)
    step = "if you trust who made it: waypoint import FILE --trust; or have it signed: --require-signature"
    refused(other, "import", path, "--as", "bound", code=2, said=f"{tmp_path} (--bind)", step=step)
    other.must("import", path, "--as", "bound", "--trust")
    origin.must("branch", "delete", "bound")
    shutil.rmtree(tmp_path)
    assert "which is bound into it, is not here" in " ".join(other.must("show", "bound", "--json").json()["elsewhere"])


def test_what_an_export_is_written_to(origin: Home, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("something else")
    done = origin.cli("export", "cold", str(tmp_path / "there"))
    assert (done.code, done.stderr.splitlines()[1]) == (4, "  next: name another file, or replace it: --force")
    assert (tmp_path / "there").read_text() == "something else"
    assert origin.cli("export", "nosuch", str(tmp_path / "there"), "--force").code == 2  # which leaves it
    assert (tmp_path / "there").read_text() == "something else"
    origin.must("export", "cold", str(tmp_path / "there"), "--force")
    assert (tmp_path / "there").read_bytes().startswith(b"WPexpo")
    step = "name a file in a folder that is there, and that you may write to"
    for path, why in (("no/where", errno.ENOENT), ("there/x", errno.ENOTDIR), (".", errno.EISDIR)):
        said = f"cannot write the export to {tmp_path / path}: {os.strerror(why)}"
        refused(origin, "export", "cold", str(tmp_path / path), code=2, said=said, step=step)
    done = origin.cli("export", "cold", "/dev/full")
    assert (done.code, "name another file, with room for it" in done.stderr) == (125, True)
    assert origin.must("export", "cold", str(tmp_path / "another")).code == 0
    (tmp_path / "another").unlink()
    assert origin.cli("export", "nosuch", str(tmp_path / "new")).code == 2
    assert "name a file for the export" in origin.cli("export", "cold", "-", "--json").stderr
    assert origin.must("export", "cold", "/dev/null").code == 0
    assert os.listdir(tmp_path) == ["there"]


def test_what_is_exported_stays_until_all_of_it_is_sent(origin: Home, other: Home, tmp_path: Path) -> None:
    """Earlier captures without a name, too."""
    random = "head -c 3000000 /dev/urandom > /srv/large"
    for name in ("moved", "gone", "moved"):
        inside(origin, "main", random)
        origin.must("checkpoint", name, "-b", "main", "--tier", "files", "--force", "--wait")
    earlier = origin.must("show", "gone", "--json").json()["parents"]
    origin.must("rm", "gone")
    with origin.background("export", "moved", "-") as exporting:
        assert exporting.stdout is not None
        exporting.stdout.read(6)
        exporting.stdout.close()
        assert exporting.wait(PATIENCE_S) == 141  # as of any program whose reader has gone
    with origin.background("export", "moved", "-") as exporting:
        assert exporting.stdout is not None
        begun = exporting.stdout.read(6)
        assert begun == b"WPexpo"
        found = origin.must("gc", "--keep-operations", "0", "--json").json()
        assert not {one["capture"] for one in found["removed"]} & set(earlier)
        content = begun + exporting.stdout.read()
    imported = other.must("import", "-", "--as", "moved", "--json", stdin=content).json()
    assert imported["left_out"] == []
    found = origin.must("gc", "--keep-operations", "0", "--json").json()
    assert set(earlier) <= {one["capture"] for one in found["removed"]}
    assert found["stays"] == []
    assert "bug while serving" not in (origin.path / "daemon.log").read_text()


def test_an_export_of_the_first_version_is_taken_in(other: Home, tmp_path: Path) -> None:
    """What is in its processes is looked at in tests/store/content/test_kept_processes.py: they need that machine."""
    (tmp_path / "passphrase").write_text(PASSPHRASE)
    (tmp_path / "signer").write_text(SIGNER)
    options = ["--passphrase-file", f"{tmp_path}/passphrase", "--require-signature", f"{tmp_path}/signer"]
    found = other.must("import", str(KEPT / "export-1-sealed"), "--as", "kept", "--json", *options).json()
    assert found["image"] == next((KEPT / "store-1-processes/images").iterdir()).name
    assert other.must("cat", "kept:/srv/made").stdout == "what was kept in November 2026\n"
    assert other.must("layer", "get", "kept", "trace", "-").stdout == "what an agent did\n"
    # It can come again after it was removed, and be brought back.
    other.must("rm", "kept")
    removed = other.must("gc", "--keep-operations", "0", "--json").json()["removed"]
    assert found["capture"] in {one["capture"] for one in removed}
    again = other.must("import", str(KEPT / "export-1-sealed"), "--as", "kept", "--json", *options).json()
    assert (again["image"], again["new"]) == (found["image"], found["new"])
    assert other.must("cat", "kept:/srv/made").stdout == "what was kept in November 2026\n"
