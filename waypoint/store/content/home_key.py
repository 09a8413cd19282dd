"""Where a home has its store, and what is left of an earlier one; and the secret of the store: in a file that the
home's config.json names, `store_key`. The file may be on a tmpfs, or on another disk, and so be missing at times.
"""

import os

import msgspec

from waypoint.linux.storage import files
from waypoint.linux.storage.deep import remove_path
from waypoint.model.errors import HostLacks
from waypoint.model.paths import SHARED_MEMORY

STORE = "store"
"""In the home: the folder of its store."""
_LEFT = "store.plain"
_CONFIG = "config.json"
TYPE_IT = "type the passphrase: waypoint setup --passphrase"
OWN_FILE = "store.key"
"""In the home: a file of random bytes, where no passphrase was chosen."""


def left_in(home: str) -> str:
    """The path of what is left of a store without images, in the place of which an encrypted one came: it is to be
    removed (`remove_left`). "": nothing is. What has images, or cannot be looked at, is not that, and stays.
    """
    path = f"{home}/{_LEFT}"
    try:
        has_images = bool(os.listdir(f"{path}/images"))
    except (FileNotFoundError, NotADirectoryError):  # much of it is removed already
        has_images = False
    except OSError:
        has_images = True
    return path if os.path.lexists(path) and not has_images else ""


def put_away(home: str) -> None:
    """Have no store from now on, for who has its lock and has seen that it has no images; in one step, which is durable
    on return. `remove_left` is to follow. Raises OSError, also if what is there in its place has images.
    """
    remove_left(home)
    os.rename(f"{home}/{STORE}", f"{home}/{_LEFT}")
    files.sync_folder(home)


def remove_left(home: str) -> str:
    """Remove what `left_in` tells of, and return that; somebody else may do so at the same time. Raises OSError; may be
    done again.
    """
    path = left_in(home)
    if path:
        remove_path(path)
    return path


class StoreKey(msgspec.Struct, frozen=True):
    """`file`: the path of the secret; in it are random bytes, or with `passphrase` a passphrase as its first line."""

    file: str
    passphrase: bool

    @property
    def is_typed(self) -> bool:
        """Whether the file is in memory, and has a passphrase that somebody has to type after each start of the
        machine.
        """
        return self.file.startswith(f"{SHARED_MEMORY}/waypoint-")


class _KeyConfig(msgspec.Struct):
    """What is read of config.json here."""

    store_key: StoreKey | None = None


def key_of(home: str) -> StoreKey | None:
    """None if the home's store is not to be encrypted. Raises HostLacks if config.json cannot be used."""
    try:
        return msgspec.json.decode(files.read_own(f"{home}/{_CONFIG}"), type=_KeyConfig).store_key
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        next_step = "mend it, or remove it and run setup again, which loses nothing but its settings"
        raise HostLacks("read", f"{home}/{_CONFIG}", str(error), next_step) from error


def read_secret(key: StoreKey) -> bytes:
    """The secret. Raises HostLacks if the file is not there, is somebody else's, or is empty."""
    tried, put_back = "read the key of the store,", "put it back there: all that is not in the store alone goes on"
    if key.is_typed:
        put_back = TYPE_IT
    try:
        content = files.read_own(key.file)
    except OSError as error:
        raise HostLacks(tried, key.file, error.strerror or str(error), put_back) from error
    secret = content.partition(b"\n")[0] if key.passphrase else content
    if not secret:
        raise HostLacks(tried, key.file, "it is empty", put_back)
    return secret
