"""A home whose store is encrypted: nobody reads it without the key, and nothing wrong ever comes out of it."""

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sessions import inside
from tests.cli.typing_in import typed
from tests.corner import corner as corner
from tests.homes import Home, open_home
from waypoint.capture.storing.orders import Verify
from waypoint.capture.storing.store_work import carry_out
from waypoint.model.errors import HostLacks, StoreDamaged
from waypoint.model.paths import passphrase_path
from waypoint.setup import encryption
from waypoint.store.content.home_key import key_of, left_in, read_secret, remove_left
from waypoint.store.content.keys import read_config
from waypoint.store.content.opened import make_store
from waypoint.store.packs.ciphers import AES_256_GCM, PLAIN
from waypoint.store.packs.digests import Kind

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

PUT_BACK = "put it back there: all that is not in the store alone goes on"
SECRET = b"a word that nobody else would write: xyzzy-plugh"


def refused(home: Home, *words: str, code: int, said: str, step: str = "") -> None:
    done = home.cli(*words)
    assert (done.code, said in done.stderr, step in done.stderr) == (code, True, True), done.stderr


def content(home: Home) -> bytes:
    return everything(home.path / "store")


def test_nobody_reads_it_without_the_key(tmp_path: Path) -> None:
    with open_home("sealed") as home:
        said = home.must("setup", "--encrypt").stderr
        assert "not encrypted: the pool of files, the hot area with the memory of programs, scrollback, logs" in said
        assert home.must("setup", "--encrypt").code == 0
        left = home.path / "store.plain"  # by one that was killed
        (left / "packs").mkdir(parents=True)
        told = home.must("setup", "--check").stderr
        assert f"{left} is still there, which is not encrypted" in told
        assert f"removed {left}, which is not encrypted" in home.must("setup").stderr
        home.must("daemon", "stop")
        left.mkdir()
        key = home.path / "store.key"
        assert key.stat().st_mode & 0o7777 == 0o600
        assert home.must("setup", "--check", "--json").json()["store_key"] == str(key)
        home.must("shell", "-d", "main", "--cwd", "/srv")
        inside(home, "main", f"echo '{SECRET.decode()}' > made; word=kept; sleep 1000 & sleep 0")
        home.must("checkpoint", "warm", "-b", "main", "--wait", "--tier", "live")
        assert SECRET not in content(home)
        assert not left.exists()
        assert f"removed {left}, what a setup had left" in home.must("daemon", "logs").stdout
        home.must("checkpoint", "hot", "-b", "main")
        home.must("evict", "warm")
        home.must("fork", "warm", "copy")
        assert inside(home, "copy", "echo $word; cat made; jobs").startswith(f"kept\n{SECRET.decode()}\n[1]+  Running")
        home.must("stop", "copy")
        home.must("evict", "warm")
        _without_key(home, key)
        _with_another_key(home, key)
        exported = tmp_path / "warm.wpx"
        home.must("export", "warm", str(exported))
        assert SECRET in exported.read_bytes()  # as it says, without a passphrase
        _with_other_bits(home)


def _without_key(home: Home, key: Path) -> None:
    """What is hot works as ever."""
    away = key.rename(key.with_name("store.key.away"))
    refused(home, "fork", "warm", "lost", code=3, said=f"{key}: No such file or directory", step=PUT_BACK)
    refused(home, "verify", code=3, said=str(key), step=PUT_BACK)
    refused(home, "setup", "--check", code=3, said=str(key), step=PUT_BACK)
    refused(home, "checkpoint", "later", "-b", "main", "--wait", code=3, said=str(key), step=PUT_BACK)
    assert home.must("show", "later", "--json").json()["durable"] is False
    home.must("restore", "hot", "-b", "main")
    assert inside(home, "main", "echo $word") == "kept\n"
    away.rename(key)
    home.must("verify")


def _with_another_key(home: Home, key: Path) -> None:
    right = key.read_bytes()
    key.write_bytes(os.urandom(32))
    step = "give the key file that it was made with"
    refused(home, "fork", "warm", "lost", code=3, said="the key is not the one that it was made with", step=step)
    key.write_bytes(b"")
    refused(home, "verify", code=3, said="it is empty", step=PUT_BACK)
    key.write_bytes(right)
    assert home.must("verify", "--read-data", "--json").json()["problems"] == []


def _with_other_bits(home: Home) -> None:
    """Of one pack: changed, cut off, or another one's. What comes back is what was captured, or nothing."""
    packs = sorted((home.path / "store/packs").iterdir(), key=lambda path: path.stat().st_size)
    small, large = packs[0], packs[-1]
    whole = large.read_bytes()
    flipped = bytearray(whole)
    for place in random.Random(1).sample(range(len(whole)), len(whole) // 2000):
        flipped[place] ^= 1 << place % 8
    for wrong in (bytes(flipped), whole[: len(whole) // 2], small.read_bytes() if small != large else b""):
        large.write_bytes(wrong)
        refused(home, "verify", "--read-data", code=10, said="damaged: ")
        refused(home, "fork", "warm", "lost", code=10, said="waypoint: cannot ")
        assert home.cli("logs", "lost").code == 2
    large.write_bytes(whole)
    home.must("fork", "warm", "found")
    assert inside(home, "found", "cat made") == f"{SECRET.decode()}\n"


def test_a_passphrase_and_what_is_refused(tmp_path: Path) -> None:
    word, other = tmp_path / "word", tmp_path / "other"
    word.write_text("open sesame\n")
    other.write_text("open barley\n")
    with open_home("passed") as home:
        refused(home, "setup", "--passphrase-file", str(word), code=2, said="--encrypt", step="say --encrypt, too")
        refused(home, "setup", "--encrypt", "--passphrase-file", "/nosuch", code=3, said="/nosuch", step=PUT_BACK)
        home.must("shell", "-d", "main")
        home.must("checkpoint", "plain", "-b", "main", "--wait", "--tier", "files")
        config = json.loads((home.path / "config.json").read_text())
        step = "export what you need, begin anew ("
        refused(home, "setup", "--encrypt", code=4, said="images that are not encrypted", step=step)
        assert ", then setup --encrypt), and import it" in home.cli("setup", "--encrypt").stderr
        assert json.loads((home.path / "config.json").read_text()) == config
        home.must("verify")
        sealed = {"store_key": {"file": str(word), "passphrase": True}}
        (home.path / "config.json").write_text(json.dumps(config | sealed))
        refused(home, "verify", code=10, said="it is another one", step="put the store of this home back")
        (home.path / "config.json").write_text(json.dumps(config))
    with open_home("passed") as home:
        word.chmod(0o640)
        told = home.must("setup", "--encrypt", "--passphrase-file", str(word)).stderr
        assert f"others than its owner may read {word}, which has the passphrase: chmod 600 {word}\n" in told
        other.chmod(0o600)
        assert "chmod" not in home.cli("setup", "--encrypt", "--passphrase-file", str(other)).stderr
        assert not (home.path / "store.key").exists()
        words = ("setup", "--encrypt", "--passphrase-file", str(other))
        refused(home, *words, code=4, said=f"is encrypted already, with {word}", step="leave that out: ")
        home.must("shell", "-d", "main")
        home.must("checkpoint", "a", "-b", "main", "--wait", "--tier", "files")
        right = word.read_text()
        word.write_text(other.read_text())
        refused(home, "verify", code=3, said="not the one", step="give the passphrase that it was made with")
        word.write_text(right)
        home.must("evict", "a")
        home.must("restore", "a", "-b", "again")


def test_a_passphrase_is_typed_and_in_no_file() -> None:
    with open_home("typed") as home:
        kept, word = Path(passphrase_path(str(home.path))), "open sesame, please"
        step = "type the passphrase: waypoint setup --passphrase"
        try:
            code, said = typed(home, "setup", "--encrypt", "--passphrase", answers=(word, "open barley"))
            assert (code, "the two are not the same" in said, kept.exists()) == (2, True, False), said
            assert typed(home, "setup", "--encrypt", "--passphrase", answers=[""])[0] == 2
            code, said = typed(home, "setup", "--encrypt", "--passphrase", answers=(word, word))
            assert (code, word in said, kept.stat().st_mode & 0o7777) == (0, False, 0o600), said
            home.must("shell", "-d", "main")
            home.must("checkpoint", "a", "-b", "main", "--wait", "--tier", "files")
            home.must("evict", "a")
            kept.unlink()  # as after a reboot
            refused(home, "restore", "a", "-b", "again", code=3, said=f"{kept}: No such file", step=step)
            code, said = typed(home, "setup", "--passphrase", answers=["open barley"])
            assert (code, "not the one that it was made with" in said, kept.exists()) == (3, True, False), said
            done = subprocess.run(
                home.argv("setup", "--passphrase"),
                env=home.env,
                start_new_session=True,
                capture_output=True,
                check=False,
            )
            step = "name a file that has it: --passphrase-file FILE"
            assert (done.returncode, step in done.stderr.decode()) == (2, True)
            assert typed(home, "setup", "--passphrase", answers=[word])[0] == 0
            home.must("restore", "a", "-b", "again")
            for path in home.path.rglob("*"):
                assert not path.is_file() or path.name == "pool.img" or word.encode() not in path.read_bytes(), path
        finally:
            kept.unlink(missing_ok=True)


def test_a_passphrase_is_not_kept_where_it_would_be_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waypoint.setup.encryption.mounts.read_mounts", list)
    with pytest.raises(HostLacks, match="is not in memory") as refused:
        encryption.keep_passphrase(tmp_path, "open sesame", is_new=True)
    step = "put it into a file that goes with the machine's power: --passphrase-file FILE"
    assert refused.value.next_step == step
    assert not os.path.exists(passphrase_path(str(tmp_path)))


def test_what_a_daemon_puts_while_it_is_set_up_is_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon makes the store anew, by what config.json says, in the moment when the plain one is gone."""
    make_store(str(tmp_path / "store")).close()
    put_away = encryption.put_away

    def and_a_daemon(home: str) -> None:
        put_away(home)
        key = key_of(home)
        make_store(f"{home}/store", read_secret(key) if key else b"").close()

    monkeypatch.setattr(encryption, "put_away", and_a_daemon)
    encryption.encrypt(tmp_path, None, lambda _: None)
    assert read_config(str(tmp_path / "store/config.json")).cipher == AES_256_GCM


def test_an_encrypted_store_keeps_its_key_if_the_plain_one_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(str(tmp_path / "store")).close()
    said = list[str]()

    def refuse(home: str) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    left = tmp_path / "store.plain"
    monkeypatch.setattr(encryption, "remove_left", refuse)
    encryption.encrypt(tmp_path, None, said.append)
    assert key_of(str(tmp_path)) is not None
    assert read_config(str(tmp_path / "store/config.json")).cipher == AES_256_GCM
    assert (left_in(str(tmp_path)), any(str(left) in line for line in said)) == (str(left), True)
    (left / "images/one").write_bytes(b"what somebody has put there")
    assert (remove_left(str(tmp_path)), (left / "images/one").exists()) == ("", True)
    (left / "images/one").unlink()
    assert (remove_left(str(tmp_path)), left.exists()) == (str(left), False)


def encrypt_and_die(home: Path, at: int) -> bool:
    """Have the store encrypted in a process that is killed before its change number `at` of a name. Returns whether it
    was.
    """
    pid = os.fork()
    if pid == 0:
        count = [0]

        def or_die(change: Callable[..., None]) -> Callable[..., None]:
            def changed(*words: Any, **more: Any) -> None:
                count[0] += 1
                if count[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                change(*words, **more)

            return changed

        for name in ("rename", "unlink", "rmdir"):
            setattr(os, name, or_die(getattr(os, name)))
        with contextlib.suppress(BaseException):
            encryption.encrypt(home, None, lambda _: None)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_who_is_killed_while_the_store_is_encrypted_leaves_nothing_that_is_not(tmp_path: Path) -> None:
    """Of a store that has content, and no image that needs it. Nor is it ever half a store."""
    at, steps = 1, set[str]()
    while True:
        home = tmp_path / f"{at}"
        home.mkdir()
        store = make_store(str(home / "store"))
        with store.writing("test") as writer:
            writer.put(Kind.DATA, SECRET)
            writer.commit()
        store.close()
        if not encrypt_and_die(home, at):
            break
        if not (home / "store/config.json").exists():  # another one may be in the making
            assert left_in(str(home)) or SECRET not in everything(home)
            assert not (home / "store").exists() or SECRET not in everything(home / "store")
            steps.add("left" if left_in(str(home)) else "removed")
        elif read_config(str(home / "store/config.json")).cipher == PLAIN:
            assert len(list((home / "store/packs").iterdir())) == 1, "all of it is there"
            assert left_in(str(home)) == ""
            steps.add("whole")
            if key_of(str(home)) is not None:
                with pytest.raises(StoreDamaged) as refusal:
                    carry_out(Verify(store=str(home / "store"), images=[], read_data=False), lambda done, total: None)
                step = f"have it removed, it has no images: waypoint --home {home} setup --encrypt"
                assert refusal.value.next_step == step
                steps.add("refused")
        remove_left(str(home))  # as each setup begins, and each daemon
        encryption.encrypt(home, None, lambda _: None)
        assert read_config(str(home / "store/config.json")).cipher == AES_256_GCM
        assert SECRET not in everything(home)
        assert sorted(path.name for path in home.iterdir()) == ["config.json", "store", "store.key"]
        at += 1
    assert steps == {"whole", "refused", "left", "removed"}


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
