"""Who a store is, and the two keys that everything in it is made with.

config.json has the store's master key: as it is, or sealed by a secret that lies elsewhere (a file of random bytes, or
a passphrase that scrypt, RFC 7914, makes slow to guess). So a secret can change without a byte of the store changing.
"""

import os
from typing import NamedTuple

import msgspec
from blake3 import blake3

from waypoint.linux.storage import files
from waypoint.model.errors import HostLacks, StoreDamaged
from waypoint.model.ids import new_id
from waypoint.store.packs.ciphers import AES_256_GCM, PLAIN

FORMAT = 1
KEY_BYTES = 32
_NONCE_BYTES = 12
_SCRYPT_MEMORY = 128 << 20
PUT_BACK = "put config.json back from a backup: nothing else has the keys"


class Scrypt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a passphrase becomes a key: the parameters of RFC 7914, the salt in hex."""

    salt: str
    n: int = 1 << 15
    r: int = 8
    p: int = 1


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of config.json. `cipher`: that of new files. `master`: in hex, with nonce before and tag behind it if
    it is sealed. `scrypt`: None if the secret is a file's.
    """

    format: int
    id: str
    cipher: int
    master: str
    scrypt: Scrypt | None = None


class Keys(NamedTuple):
    """`hash`: for addresses. `seal`: for payloads; empty in a store that is not encrypted."""

    hash: bytes
    seal: bytes


def new_config(secret: bytes = b"", *, passphrase: bool = False) -> StoreConfig:
    """The config of a new store, encrypted if there is a secret: a passphrase, or the content of a key file."""
    master = os.urandom(KEY_BYTES)
    if not secret:
        return StoreConfig(format=FORMAT, id=new_id(), cipher=PLAIN, master=master.hex())
    scrypt = Scrypt(salt=os.urandom(16).hex()) if passphrase else None
    bare = StoreConfig(format=FORMAT, id=new_id(), cipher=AES_256_GCM, master="", scrypt=scrypt)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # not loaded for a store that is not encrypted

    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_stretched(bare, secret)).encrypt(nonce, master, bare.id.encode())
    return msgspec.structs.replace(bare, master=(nonce + sealed).hex())


def unlock(config: StoreConfig, secret: bytes = b"") -> Keys:
    """The store's keys. Raises HostLacks if it is encrypted and the secret is missing or another one."""
    master = bytes.fromhex(config.master)
    if config.cipher == PLAIN:
        return Keys(_derived(master, "hash"), b"")
    if not secret:
        raise _locked(config, "it is encrypted, and there is no key")
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        sealed = AESGCM(_stretched(config, secret))
        master = sealed.decrypt(master[:_NONCE_BYTES], master[_NONCE_BYTES:], config.id.encode())
    except InvalidTag as error:
        raise _locked(config, "the key is not the one that it was made with") from error
    return Keys(_derived(master, "hash"), _derived(master, "seal"))


def write_config(path: str, config: StoreConfig) -> None:
    """Durable on return. Raises OSError."""
    files.publish(path, msgspec.json.format(msgspec.json.encode(config), indent=1))


def read_config(path: str) -> StoreConfig:
    """Raises OSError, StoreDamaged."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        config = msgspec.json.decode(content, type=StoreConfig)
        bytes.fromhex(config.master)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise StoreDamaged("open", path, str(error), PUT_BACK) from error
    if config.format != FORMAT:
        said = f"the store is of format {config.format}, this version of Waypoint reads {FORMAT}"
        raise StoreDamaged("open", path, said, "use the version of Waypoint that made it")
    return config


def _derived(master: bytes, purpose: str) -> bytes:
    return blake3(master, derive_key_context=f"waypoint/store/1/key {purpose}").digest()


def _stretched(config: StoreConfig, secret: bytes) -> bytes:
    """The key that the secret stands for."""
    scrypt = config.scrypt
    if scrypt is None:
        return _derived(secret, "file")
    salt = bytes.fromhex(scrypt.salt)
    import hashlib  # for passphrases only

    return hashlib.scrypt(secret, salt=salt, n=scrypt.n, r=scrypt.r, p=scrypt.p, maxmem=_SCRYPT_MEMORY, dklen=KEY_BYTES)


def _locked(config: StoreConfig, said: str) -> HostLacks:
    kind = "passphrase" if config.scrypt is not None else "key file"
    return HostLacks("open", f"store {config.id[:8]}", said, f"give the {kind} that it was made with")
