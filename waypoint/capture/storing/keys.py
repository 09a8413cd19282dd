"""The key of an encrypted home's store. The daemon has it in memory only: from the key file, or since `unlock`."""

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from waypoint.capture.storing.orders import Unlock
from waypoint.linux.storage import files
from waypoint.model.errors import Failed, StateConflict, UsageProblem, WaypointError
from waypoint.model.paths import as_root

_MIN_KEY_BYTES, _MAX_KEY_BYTES = 32, 1 << 16
STAYS_PLAIN = (
    "the files of sessions and captures in the pool, captures in `hot` until they are evicted, names, messages and "
    "records in names.db, the logs of the daemon and of CRIU, files that `apply` has replaced, the output of live "
    "sessions if /run is on a disk, and what the machine has swapped"
)
"""What a home has besides its store, which alone is encrypted."""


class Encryption(msgspec.Struct, frozen=True):
    """The part of config.json that makes a home encrypted. `key_file`: ""; a passphrase instead."""

    key_file: str = ""


class _Settings(msgspec.Struct):
    encryption: Encryption | None = None


class Keys:
    """The key of the store of a home. Thread-safe. `ask`: has the store's own process check a secret, and returns the
    master key in hex.
    """

    def __init__(self, store: Path, ask: Callable[[Unlock], str]) -> None:
        self._store = str(store)
        self.encryption = encryption_of(store.parent)
        self._ask = ask
        self._lock = threading.Lock()
        self._key = ""

    def get(self) -> str:
        """The master key; "" if the home is not encrypted. Raises StateConflict if the key cannot be had,
        StoreDamaged if the store lacks its config.json.
        """
        if self.encryption is None or self._key:
            return self._key
        if not self.encryption.key_file:
            said = "nobody has given its passphrase since the daemon started"
            raise locked(self._store, said, as_root(os.path.dirname(self._store), "setup", "--unlock"))
        self._take(read_key_file(self.encryption.key_file, self._store))
        return self._key

    def problem(self) -> WaypointError | None:
        """Why `get` fails; None if it does not."""
        try:
            self.get()
        except WaypointError as error:
            return error
        return None

    def unlock(self, passphrase: str) -> None:
        """Take the key, which `passphrase` or the key file unlocks. Raises StateConflict."""
        if self.encryption is None:
            raise UsageProblem("unlock", f"store {self._store}", "it is not encrypted")
        if self.encryption.key_file:
            self.get()
        else:
            self._take(passphrase)

    def _take(self, secret: str) -> None:
        dump_no_core()
        with self._lock:
            self._key = self._ask(Unlock(store=self._store, secret=secret))


def encryption_of(home: Path) -> Encryption | None:
    """None: the home is not encrypted. Raises Failed."""
    path = str(home / "config.json")
    try:
        return msgspec.json.decode(files.read_own(path), type=_Settings).encryption
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Failed("read", path, str(error), "repair it") from error


def read_key_file(path: str, store: str) -> str:
    """The content of a key file. Raises StateConflict if it cannot be read, is too short (a write that
    was cut off; a guess), or if others can read it.
    """
    try:
        content = files.read_own(path)[:_MAX_KEY_BYTES].decode()
        is_open = os.stat(path, follow_symlinks=False).st_mode & 0o077 != 0
    except OSError as error:
        said = f"its key file {path} cannot be read: {error.strerror}"
        raise locked(store, said, "put the key file back") from error
    except UnicodeDecodeError as error:
        raise locked(store, f"{path} is no key file", "put the key file back") from error
    if len(content.strip()) < _MIN_KEY_BYTES:
        said = f"{path} is no key file: it has less than {_MIN_KEY_BYTES} bytes"
        raise locked(store, said, "put the key file back")
    if is_open:
        raise locked(store, f"other users can read its key file {path}", f"chmod 600 {path}")
    return content


def dump_no_core() -> None:
    """Keep this process, which has the key in memory, from writing it to the disk if it crashes."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    # With 0, the kernel would still run a program for crashes (core(5)).
    resource.setrlimit(resource.RLIMIT_CORE, (min(1, hard) if hard != resource.RLIM_INFINITY else 1, hard))


def locked(store: str, said: str, next_step: str) -> StateConflict:
    return StateConflict("open", f"store {store}", said, next_step, code="store-locked")
