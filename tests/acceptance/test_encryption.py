"""An encrypted home: its store shows nothing, and without the key nothing is stored or read, and nothing is lost."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pexpect
import pytest

from tests.acceptance.sessions import inside
from tests.acceptance.test_stored_captures import worker
from tests.cli.conftest import exit_status
from tests.homes import CLI_TIMEOUT_S, Home, open_home
from tests.waiting import wait_until
from waypoint.store import config, encryption, locking

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

PASSPHRASE = "a passphrase of the test"


@pytest.fixture(scope="module")
def encrypted() -> Iterator[Home]:
    with open_home(options=["--encrypt"]) as home:
        yield home


def code_of(home: Home, *words: str) -> tuple[int, str]:
    done = home.cli(*words, "--json")
    return done.code, done.json()["error"]["code"]


def test_captures_come_back_from_an_encrypted_store_which_shows_nothing(encrypted: Home, tmp_path: Path) -> None:
    home, secret = encrypted, f"secret-{os.getpid()}"
    assert os.stat(home.path / "keys/store.key").st_mode & 0o777 == 0o600
    home.must("shell", "-d", "main")
    inside(
        home, "main", f"mkdir /srv/{secret}; for i in {{1..99}}; do echo {secret}; done >/srv/{secret}/file; X={secret}"
    )
    made = home.must("checkpoint", "one", "--wait", "--json").json()
    assert (made["tier"], made["durable"]) == ("live", True)
    shown = home.must("show", "one", "--json").json()
    assert shown["layers"]["files"]["digest"] != ""
    inside(home, "main", "echo later >/srv/file; X=later")
    home.must("stop", "--files", "main")
    home.must("evict", "--all")
    files = [Path(folder, name) for folder, _, names in os.walk(home.path / "store") for name in names]
    assert sum(path.stat().st_size for path in files) > 1 << 20
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert home.must("verify", "--read-data", "--json").json()["damage"] == []
    home.must("restore", "one", "--new", "again")
    assert (
        inside(home, "again", f"tail -1 /srv/{secret}/file; echo $X; cat /srv/file 2>&- || :")
        == f"{secret}\n{secret}\n"
    )
    home.must("stop", "again", "--discard")
    exported = home.must("export", "one", f"{tmp_path}/archive", "--json").json()
    assert exported["exposes"]
    row = next(one for one in home.must("doctor", "--json").json() if one["capability"] == "encryption")
    assert (row["state"], "names.db" in row["why"]) == ("ok", True)
    assert "names.db" in home.must("setup", "--check").stderr


def test_without_its_key_file_the_store_is_locked_and_sessions_work(encrypted: Home, tmp_path: Path) -> None:
    home, key = encrypted, encrypted.path / "keys/store.key"
    home.must("shell", "-d", "main")
    home.must("checkpoint", "stored", "--wait", "--tier", "files")
    home.must("evict", "stored")
    home.must("daemon", "stop")
    key.rename(tmp_path / "key")
    before = {path.name for path in (home.path / "store/packs").iterdir()}
    inside(home, "main", "echo works >/srv/works")
    home.must("checkpoint", "hot", "--tier", "files")
    for words in (
        ["checkpoint", "durable", "--wait"],
        ["restore", "stored", "--new", "no"],
        ["verify"],
        ["evict", "hot"],
    ):
        assert code_of(home, *words) == (4, "store-locked"), words
    assert home.cli("evict", "--all").code == 1
    home.must("restore", "hot", "--new", "yes")
    assert inside(home, "yes", "cat /srv/works") == "works\n"
    failed = home.cli("gc", "--json")
    assert "key file" in " ".join(failed.json()["failed"])
    assert {path.name for path in (home.path / "store/packs").iterdir()} == before
    (tmp_path / "key").rename(key)
    home.must("restore", "stored", "--new", "unlocked")
    home.must("stop", "--all", "--discard")


def test_setup_check_reports_a_key_file_that_others_can_read(encrypted: Home) -> None:
    key = encrypted.path / "keys/store.key"
    key.chmod(0o644)
    checked = encrypted.cli("setup", "--check")
    assert (checked.code, "chmod 600" in checked.stderr) == (3, True), checked
    key.chmod(0o600)


def test_a_passphrase_unlocks_the_store_until_the_daemon_ends(
    encrypted: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, path = encrypted, str(encrypted.path / "store")
    (tmp_path / "passphrase").write_text(f"{PASSPHRASE}\n")
    # The same store with a passphrase in place of the key file, which is checked quickly.
    monkeypatch.setattr(encryption, "_SCRYPT", config.Scrypt(n=2, r=8, p=1))
    master = encryption.MasterKey(locking.unlock(path, (home.path / "keys/store.key").read_bytes()))
    locked = encryption.lock(master, encryption.Secret("passphrase", PASSPHRASE.encode()))
    config.publish(path, msgspec.structs.replace(config.read(path), encryption=locked))

    home.must("setup", "--encrypt", "--passphrase", "--passphrase-file", f"{tmp_path}/passphrase")
    home.must("shell", "-d", "main")
    home.must("checkpoint", "first", "--wait", "--tier", "files")
    programs = [home.must("daemon", "status", "--json").json()["pid"], worker(home)]
    seen = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in programs for name in ("cmdline", "environ")]
    assert not [one for one in seen if PASSPHRASE.encode() in one]
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in programs]
    assert all("core file size 1 " in " ".join(one.split()) for one in limits)  # they have the key in memory
    home.must("daemon", "stop")
    assert code_of(home, "checkpoint", "second", "--wait", "--tier", "files") == (4, "store-locked")
    assert home.must("exec", "--", "echo works").stdout == "works\n"
    done = home.cli("setup", "--unlock", "--passphrase-file", "-", stdin=b"another\n")
    assert (done.code, "not its key" in done.stderr) == (4, True), done
    command, *words = home.argv("setup", "--unlock")
    terminal = pexpect.spawn(command, words, env=home.env, timeout=CLI_TIMEOUT_S)
    terminal.expect("Passphrase: ")
    terminal.sendline(PASSPHRASE)
    assert exit_status(terminal) == 0
    wait_until(lambda: home.must("show", "second", "--json").json()["durable"], "what waited for the key is stored")
    assert PASSPHRASE not in (home.path / "daemon.log").read_text()
    assert "a passphrase unlocks it" in home.cli("setup", "--encrypt").stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--key-file", "/k"],
        ["--passphrase"],
        ["--encrypt", "--check"],
        ["--encrypt", "--passphrase", "--key-file", "/k"],
        ["--unlock", "--key-file", "/k"],
    ],
)
def test_options_that_do_not_fit_are_refused(encrypted: Home, words: list[str]) -> None:
    assert encrypted.cli("setup", *words).code == 2
