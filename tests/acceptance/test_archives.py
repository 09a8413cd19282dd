"""An exported checkpoint comes back in another home, with its processes."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.test_stored_captures import ASK, SERVER
from tests.answers import unusual
from tests.homes import Home, open_home
from tests.store.test_archives import make_keys
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture(scope="module")
def archive(home: Home, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A signed archive of the checkpoint `two`, whose ancestor is `one`, and what `checkpoint` has printed."""
    folder = tmp_path_factory.mktemp("archive")
    (folder / "model").write_bytes(os.urandom(300_000))
    make_keys(folder, "key")
    make_keys(folder, "another")
    home.must("shell", "-d", "arc-main")
    inside(home, "arc-main", f"mkdir /srv/work; cd /srv/work; cat >server.py <<'END'\n{SERVER}END")
    inside(home, "arc-main", "python3 server.py >/dev/null 2>&1 & X=before; echo shm >/dev/shm/s; rm /etc/hostname")
    wait_until(lambda: inside(home, "arc-main", f"{ASK} 2>/dev/null || :").startswith("1 "), "the server answers")
    home.must("checkpoint", "arc-one", "-b", "arc-main")
    inside(home, "arc-main", "echo second >file; ln file other; truncate -s 3M sparse")
    attach = f"model={folder}/model"
    made = home.must("checkpoint", "two", "-b", "arc-main", "--tier", "live", "--attach", attach, "--json").json()
    home.must("stop", "arc-main", "--discard")
    exported = home.must("export", "two", f"{folder}/two.tar", "--sign", f"{folder}/key", "--json").json()
    assert (exported["captures"], exported["signed"]) == (2, True)
    assert os.stat(folder / "two.tar").st_mode & 0o777 == 0o600
    assert home.cli("export", "two", f"{folder}/two.tar").code == 4  # it exists
    return folder / "two.tar", made | {"image": exported["image"]}


def test_an_export_comes_back_in_another_home(archive: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, made = archive
    keys = path.parent
    with open_home() as home:
        refused = home.cli("import", str(path), "--require-signature", f"{keys}/another.pub", "--json")
        assert (refused.code, refused.json()["error"]["code"]) == (10, "signature-refused")
        assert home.must("log", "--all", "--json").json() == []
        assert not (home.path / "store/packs").exists() or list((home.path / "store/packs").iterdir()) == []

        found = home.must("import", str(path), "--require-signature", f"{keys}/key.pub", "--json").json()
        assert found["names"] == ["arc-one", "two"]
        assert (found["name"], found["image"], found["tier"], found["signed"]) == ("two", made["image"], "live", True)
        again = home.cli("import", str(path), "--json")
        assert (again.code, again.json()["error"]["code"]) == (4, "name-taken")
        assert home.must("import", str(path), "--prefix", "x/", "--json").json()["new_bytes"] == 0
        first, second = home.must("log", "two", "--json").json()
        assert (first["parents"], second["durable"]) == ([second["capture"]], True)
        home.must("restore", "two", "--new", "new")
        assert inside(home, "new", ASK).startswith("2 ")
        assert inside(
            home, "new", "cat file /dev/shm/s; echo $X; stat -c %h file; ls /etc/hostname 2>/dev/null || echo gone"
        ) == ("second\nshm\nbefore\n2\ngone\n")
        home.must("layer", "get", "two", "model", f"{tmp_path}/model")
        assert (tmp_path / "model").read_bytes() == (keys / "model").read_bytes()
        home.must("restore", "x/arc-one", "--new", "older")
        assert inside(home, "older", "ls file 2>/dev/null || echo none") == "none\n"
        home.must("stop", "--all", "--discard")


def test_processes_of_another_machine_are_refused_before_any_work(
    archive: tuple[Path, dict[str, Any]],
) -> None:
    path, _ = archive
    others = {
        "kernel": ("5.4.0-other", "kernel 5.4.0-other"),
        "architecture": ("riscv64", "processor riscv64"),
        "cpu_features": (["avx10_9"], "lacks avx10_9"),
    }
    with open_home() as home:
        capture = home.must("import", str(path), "--json").json()["capture"]
        for field, (value, said) in others.items():
            home.must("daemon", "stop")
            with contextlib.closing(sqlite3.connect(home.path / "names.db")) as db, db:
                ((record,),) = db.execute("SELECT record FROM captures WHERE id = ?", (capture,))
                changed = json.loads(record)
                changed["machine"] |= {"kernel": os.uname().release, "architecture": os.uname().machine, field: value}
                db.execute("UPDATE captures SET record = ? WHERE id = ?", (json.dumps(changed).encode(), capture))
            refused = home.cli("restore", "two", "--new", "new", "--tier", "live", "--json")
            error = refused.json()["error"]
            assert (refused.code, error["code"]) == (5, "other-machine"), field
            assert said in error["said"]
            assert "--tier respawn" in error["next"]
            assert not (home.path / "hot" / capture).exists()
        (why,) = unusual(home.must("restore", "two", "--new", "new", "--json").json()["degraded"])
        assert (why["code"], why["subject"]) == ("processes-not-restored", "other-machine")
        home.must("restore", "two", "--new", "again", "--tier", "respawn")
        for branch in ("new", "again"):
            wait_until(lambda branch=branch: inside(home, branch, f"{ASK} 2>/dev/null || :"), "the server runs again")
        home.must("stop", "--all", "--discard")


@pytest.mark.soak(part="matrix")
@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo")
def test_skopeo_inspects_and_copies_an_export(archive: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = archive
    done = subprocess.run(["skopeo", "inspect", f"oci-archive:{path}"], check=True, capture_output=True)
    assert json.loads(done.stdout)["Os"] == "linux"
    command = ["skopeo", "copy", "--insecure-policy", f"oci-archive:{path}", f"oci:{tmp_path}/copy:two"]
    subprocess.run(command, check=True, capture_output=True)
    with tarfile.open(path) as tar:
        blobs = {one.name.rpartition("/")[2] for one in tar if one.name.startswith("blobs/")}
    assert {one.name for one in (tmp_path / "copy/blobs/sha256").iterdir()} <= blobs
