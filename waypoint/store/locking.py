"""Making an encrypted store, and unlocking its master key."""

import contextlib
import os
from typing import Literal

from waypoint.model.errors import StateConflict, StoreDamaged
from waypoint.store import config, encryption, index
from waypoint.store.config import StoreConfig
from waypoint.store.encryption import MasterKey, Secret
from waypoint.store.objects import CannotOpen
from waypoint.store.store import making


def check_can_encrypt(path: str, kind: Literal["key-file", "passphrase"]) -> bool:
    """Whether `make_encrypted` would make a new key. Raises StateConflict if the store has content that is not
    encrypted, or if a secret of another kind unlocks it; StoreDamaged if it has content and no config.json.
    """
    found = None
    with contextlib.suppress(FileNotFoundError):  # an empty store
        found = config.read(path).encryption
    if found is not None and found.secret != kind:
        other = "a passphrase" if kind == "key-file" else "a key file"
        said = f"it is encrypted already, and {other} unlocks it"
        raise StateConflict("encrypt", f"store {path}", said, "use that, or set up another home", code="wrong-key")
    if found is None and config.has_content(path):
        next_step = "remove all names and run 'waypoint gc --keep-operations 0s', or set up another home"
        raise StateConflict("encrypt", f"store {path}", "it has content", next_step, code="store-not-empty")
    return found is None


def make_encrypted(path: str, secret: Secret) -> bytes:
    """Make an encrypted store whose master key `secret` locks, in place of a store without content; return this key.

    If the store is encrypted already, only unlock it. Raises StateConflict if it has content that is not encrypted, or
    if `secret` is wrong.
    """
    with making(path):
        if not check_can_encrypt(path, secret.kind):
            return unlock(path, secret.value)
        index.remove(f"{path}/index.db")
        master = MasterKey(os.urandom(encryption.KEY_BYTES))
        locked = encryption.lock(master, secret)
        made = StoreConfig(format=config.FORMAT, id=config.id_of(master.addresses()), encryption=locked)
        config.publish(path, made)
        return master.secret


def unlock(path: str, value: bytes) -> bytes:
    """The master key of the encrypted store at `path`. `value`: the content of its key file, or its passphrase. Raises
    StateConflict if it is wrong. Takes a third of a second for a passphrase.
    """
    try:
        found = config.read(path)
    except FileNotFoundError as error:
        raise config.damaged(path, "config.json is missing") from error
    if found.encryption is None:
        raise StoreDamaged("unlock", f"store {path}", config.PLAIN, config.FROM_BACKUP, code="not-encrypted")
    try:
        master = encryption.unlock(found.encryption, value)
    except CannotOpen as error:
        raise config.wrong_key(path) from error
    if config.id_of(master.addresses()) != found.id:
        raise config.damaged(path, "config.json: its id is not that of its key")
    return master.secret
