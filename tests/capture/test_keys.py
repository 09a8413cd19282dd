"""The key of an encrypted store, as the daemon gets it: from a key file, or by a passphrase."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.capture.storing.keys import Encryption, Keys
from waypoint.capture.storing.orders import Damage, Verify
from waypoint.capture.storing.workers import Workers
from waypoint.model.errors import Failed, StateConflict, StoreDamaged, UsageProblem
from waypoint.setup.encrypting import encrypt
from waypoint.store import encryption
from waypoint.store.config import Scrypt
from waypoint.store.store import make_store

QUICK = Scrypt(n=2, r=8, p=1)


@pytest.fixture
def workers() -> Iterator[Workers]:
    with contextlib.closing(Workers()) as found:
        yield found


def keys_of(home: Path, workers: Workers, setting: Encryption | None) -> Keys:
    settings = {"key_file": setting.key_file} if setting is not None else None
    (home / "config.json").write_text(json.dumps({"encryption": settings}))
    return Keys(home / "store", lambda order: workers.run(order, str))


def encrypted(home: Path, key_file: str = "", passphrase: str = "") -> Encryption:
    found = encrypt(home, key_file, passphrase, lambda _: None)
    return Encryption(**found["encryption"])


def code_of(keys: Keys) -> str:
    with pytest.raises(StateConflict) as refused:
        keys.get()
    problem = keys.problem()
    assert problem is not None
    assert problem.said == refused.value.said
    return refused.value.code


def test_a_key_file_is_read_when_it_is_there_and_only_its_owner_can_read_it(tmp_path: Path, workers: Workers) -> None:
    setting, path = encrypted(tmp_path), tmp_path / "keys/store.key"
    assert (setting.key_file, path.stat().st_mode & 0o777) == (str(path), 0o600)
    keys, content = keys_of(tmp_path, workers, setting), path.read_bytes()
    path.chmod(0o640)
    assert code_of(keys) == "store-locked"
    path.unlink()
    assert code_of(keys) == "store-locked"
    path.symlink_to(tmp_path / "elsewhere")
    assert code_of(keys) == "store-locked"
    path.unlink()
    path.touch(0o600)
    path.write_bytes(content[:20])  # a write that was cut off
    assert code_of(keys) == "store-locked"
    path.write_bytes(content.replace(b"waypoint-key-1 ", b"waypoint-key-1 0"))
    assert code_of(keys) == "wrong-key"
    path.write_bytes(content)
    assert len(bytes.fromhex(keys.get())) == 32
    path.unlink()
    assert keys.get() != ""  # it is in memory
    assert code_of(keys_of(tmp_path, workers, setting)) == "store-locked"


def test_setup_may_be_repeated_and_finds_a_key_file_that_was_moved(tmp_path: Path, workers: Workers) -> None:
    assert encrypt(tmp_path, "", "", lambda _: None)["hot_budget_bytes"] == 0
    first = keys_of(tmp_path, workers, encrypted(tmp_path)).get()
    assert keys_of(tmp_path, workers, encrypted(tmp_path)).get() == first
    (tmp_path / "keys/store.key").rename(tmp_path / "moved")
    with pytest.raises(StateConflict):  # no new key is made: it would not be that of the store
        encrypted(tmp_path)
    setting = encrypted(tmp_path, str(tmp_path / "moved"))
    assert keys_of(tmp_path, workers, setting).get() == first
    with pytest.raises(StateConflict, match="a key file unlocks it"):
        encrypted(tmp_path, passphrase="x")
    with pytest.raises(UsageProblem):
        encrypted(tmp_path, str(tmp_path / "store/key"))


def test_an_empty_key_file_is_not_used_for_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "key").touch(0o600)
    with pytest.raises(StateConflict, match="no key file"):
        encrypted(tmp_path, str(tmp_path / "key"))
    assert not (tmp_path / "store/config.json").exists()


def test_a_passphrase_is_asked_for_once(tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "_SCRYPT", QUICK)
    setting = encrypted(tmp_path, passphrase="secret")
    keys = keys_of(tmp_path, workers, setting)
    assert code_of(keys) == "store-locked"
    with pytest.raises(StateConflict) as wrong:
        keys.unlock("another")
    assert wrong.value.code == "wrong-key"
    keys.unlock("secret")
    assert keys.get() != ""


def test_a_store_that_is_missing_or_plain_is_refused_by_an_encrypted_home(tmp_path: Path, workers: Workers) -> None:
    store = tmp_path / "store"
    key = keys_of(tmp_path, workers, encrypted(tmp_path)).get()
    with contextlib.closing(Workers(lambda: key)) as with_key:
        assert with_key.run(Verify(store=str(store), read_data=True), list[Damage]) == []
        (store / "config.json").unlink()
        with pytest.raises(StoreDamaged, match="missing"):
            with_key.run(Verify(store=str(store), read_data=True), list[Damage])
        assert not (store / "config.json").exists()
        lost = keys_of(tmp_path, workers, Encryption(str(tmp_path / "keys/store.key"))).problem()
        assert lost is not None
        assert (lost.code, "backup" in lost.next_step) == ("store-damaged", True)
        (store / "packs/name").touch()
        with pytest.raises(StoreDamaged, match="missing"):  # and not advised to remove all captures
            encrypted(tmp_path)
        (store / "packs/name").unlink()
        make_store(str(store))
        with pytest.raises(StoreDamaged) as refused:
            with_key.run(Verify(store=str(store), read_data=True), list[Damage])
    assert refused.value.code == "not-encrypted"


def test_a_home_that_is_not_encrypted_needs_no_key(tmp_path: Path, workers: Workers) -> None:
    keys = keys_of(tmp_path, workers, None)
    assert (keys.get(), keys.problem()) == ("", None)
    with pytest.raises(UsageProblem):
        keys.unlock("x")
    (tmp_path / "config.json").write_text('{"encryption": 1}')
    with pytest.raises(Failed):
        Keys(tmp_path / "store", lambda _: "")
