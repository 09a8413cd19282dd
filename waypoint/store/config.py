"""config.json of a store: its format, its id, and the key of its addresses or, encrypted, its master key."""

import os
from typing import Annotated, Literal

import msgspec

from waypoint.linux.storage import files
from waypoint.model.errors import StateConflict, StoreDamaged
from waypoint.store.objects import Kind, digest_of

FORMAT = 1
SALT_BYTES = 32
MAX_SCRYPT_BYTES = 1 << 30
"""The most memory that scrypt may take, whatever a config.json asks for."""
FROM_BACKUP = "replace config.json by a copy from a backup: nothing else has the key of the store"
PLAIN = "it is not encrypted, and the home is"

Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Scrypt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of RFC 7914."""

    n: Annotated[int, msgspec.Meta(ge=2)]
    r: Annotated[int, msgspec.Meta(ge=1)]
    p: Annotated[int, msgspec.Meta(ge=1, le=16)]


class LockedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The master key, sealed with a secret. `scrypt`: for passphrases. The rest is in hex."""

    secret: Literal["key-file", "passphrase"]
    salt: Key
    sealed: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{96}$")]
    scrypt: Scrypt | None = None


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of config.json. `key`: of the addresses, in hex; an encrypted store has `encryption` instead. `id`:
    made from the key of the addresses.
    """

    format: int
    id: str
    key: Key | None = None
    encryption: LockedKey | None = None


def read(path: str) -> StoreConfig:
    """Read the config.json of the store at `path`. Raises FileNotFoundError if there is no store, StoreDamaged."""
    try:
        with open(f"{path}/config.json", "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        if not has_content(path):
            raise
        raise damaged(path, "config.json is missing") from error
    try:
        config = msgspec.json.decode(content, type=StoreConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(path, f"config.json: {error}") from error
    if config.format != FORMAT:
        said = f"its format is {config.format}; this version of Waypoint reads {FORMAT}"
        raise StoreDamaged("open", f"store {path}", said, "use the version of Waypoint that has made it")
    if (config.key is None) == (config.encryption is None):
        raise damaged(path, "config.json: it must have either `key` or `encryption`")
    scrypt = config.encryption.scrypt if config.encryption is not None else None
    if scrypt is not None and 128 * scrypt.n * scrypt.r > MAX_SCRYPT_BYTES:
        raise damaged(path, "config.json: its scrypt would need too much memory")
    return config


def publish(path: str, config: StoreConfig) -> None:
    files.publish(f"{path}/config.json", msgspec.json.format(msgspec.json.encode(config), indent=1))


def id_of(key: bytes) -> str:
    """The id of the store whose addresses have this key."""
    return digest_of(Kind.DATA, key).hex()[:32]


def damaged(path: str, said: str) -> StoreDamaged:
    return StoreDamaged("open", f"store {path}", said, FROM_BACKUP)


def wrong_key(path: str) -> StateConflict:
    next_step = "use the key file or passphrase that was given to 'waypoint setup --encrypt'"
    return StateConflict("unlock", f"store {path}", "this is not its key", next_step, code="wrong-key")


def has_content(path: str) -> bool:
    """Whether the store has packs or images, which another key would make useless."""
    return any(os.path.isdir(f"{path}/{name}") and os.listdir(f"{path}/{name}") for name in ("packs", "images"))
