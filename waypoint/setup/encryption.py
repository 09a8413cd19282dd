"""`waypoint setup --encrypt`: the store of a home is encrypted from its first image on."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waypoint.linux.storage import files, mounts
from waypoint.model.errors import HostLacks, StateConflict, UsageProblem
from waypoint.model.paths import SHARED_MEMORY, passphrase_path, spelled
from waypoint.setup import config as config_file
from waypoint.setup.config import CONFIG
from waypoint.store.content.home_key import (
    OWN_FILE,
    STORE,
    StoreKey,
    key_of,
    left_in,
    put_away,
    read_secret,
    remove_left,
)
from waypoint.store.content.keys import KEY_BYTES, read_config
from waypoint.store.content.opened import make_store, open_store
from waypoint.store.content.store_folder import StoreFolder, listed
from waypoint.store.packs.ciphers import PLAIN

_NOT = (
    "not encrypted: the pool of files, the hot area with the memory of programs, scrollback, logs, names.db, files of "
    "the machine that 'apply' has replaced, and exports without a passphrase; keep the home on an encrypted disk if "
    "these must be, too"
)


def encrypt(home: Path, passphrase_file: str | None, say: Callable[[str], None]) -> None:
    """Have the home's store encrypted. It may not have images yet that are not. May be repeated.

    `passphrase_file`: what is in its first line is the secret, and the file stays where it is; None: a file of random
    bytes in the home. Raises UsageProblem, StateConflict, HostLacks (the secret is not that of the store).
    """
    before = key_of(str(home))
    wanted = before
    if before is None or passphrase_file is not None:
        wanted = StoreKey(os.path.abspath(passphrase_file or home / OWN_FILE), passphrase_file is not None)
    assert wanted is not None
    if before is not None and wanted != before:
        raise _encrypted_already(home, before)
    folder = StoreFolder(str(home / STORE))
    _check_plain(home, folder, remove=False)
    if not wanted.passphrase and not os.path.lexists(wanted.file):
        files.publish(wanted.file, os.urandom(KEY_BYTES))
    secret = read_secret(wanted)
    _publish(home, wanted)
    try:
        # A daemon may put something into the store at any time. From here on it takes the key, and no plain store.
        _check_plain(home, folder, remove=True)
        if folder.exists():
            open_store(folder.folder, secret).close()
        else:
            make_store(folder.folder, secret, passphrase=wanted.passphrase).close()
        _check_plain(home, folder, remove=False)  # made by a daemon that had looked for a key before there was one
    except BaseException:
        _publish(home, before)
        raise
    say(f"the store is encrypted (AES-256-GCM), with the {_kind(wanted)} in {wanted.file}: nobody can read it without")
    if left := left_in(str(home)):
        say(f"{left}, what it was before, could not be removed: the next setup removes it")
    if wanted.is_typed:
        say(
            "it is in memory: after each start of the machine 'waypoint setup --passphrase' asks for it, and until then"
        )
        say("nothing comes from the store or into it")
    elif not wanted.passphrase:
        say("who has all of this disk has the key, too: for a secret elsewhere begin with --passphrase-file FILE")
    say(_NOT)


def _publish(home: Path, key: StoreKey | None) -> None:
    """Have config.json say that the store has this key; None: that it is not encrypted."""
    config: dict[str, Any] = config_file.read(home)
    config.pop("store_key", None)
    if key is not None:
        config["store_key"] = {"file": key.file, "passphrase": key.passphrase}
    files.publish(str(home / CONFIG), json.dumps(config, indent=1).encode() + b"\n")


def keep_passphrase(home: Path, passphrase: str, *, is_new: bool) -> str:
    """Keep a passphrase that was typed in memory, until the machine is started anew. Returns the path of the file.

    `is_new`: the home is to be encrypted with it; else it must be that of its store. Raises UsageProblem,
    StateConflict, HostLacks (it is not that of the store; there is no tmpfs).
    """
    path, key = passphrase_path(str(home)), key_of(str(home))
    if key is None and not is_new:
        said = "its store is not encrypted"
        raise UsageProblem("use", "--passphrase", said, "say --encrypt, too")
    if key is not None and key.file != path:
        raise _encrypted_already(home, key)
    if not any(one.mount_point == SHARED_MEMORY and one.fstype == "tmpfs" for one in mounts.read_mounts()):
        next_step = "put it into a file that goes with the machine's power: --passphrase-file FILE"
        raise HostLacks("keep", "the passphrase", f"{SHARED_MEMORY} is not in memory (tmpfs)", next_step)
    if StoreFolder(str(home / STORE)).exists() and key is not None:
        open_store(str(home / STORE), passphrase.encode()).close()
    files.publish(path, passphrase.encode() + b"\n", durable=False)
    return path


def _encrypted_already(home: Path, key: StoreKey) -> StateConflict:
    said = f"its store is encrypted already, with {key.file}"
    return StateConflict("encrypt", f"the home {home}", said, f"leave that out: {spelled(str(home), 'setup')}")


def tell(home: Path, say: Callable[[str], None]) -> str | None:
    """Say whether the home's store is encrypted, and with what. Returns the path of the secret, None if it is not.
    Raises HostLacks if the secret is missing, or is another one.
    """
    key = key_of(str(home))
    if key is None:
        return None
    secret = read_secret(key)
    if StoreFolder(str(home / STORE)).exists():
        open_store(str(home / STORE), secret).close()
    say(f"its store is encrypted, with the {_kind(key)} in {key.file}; {_NOT}")
    return key.file


def _kind(key: StoreKey) -> str:
    return "passphrase" if key.passphrase else "key"


def _check_plain(home: Path, folder: StoreFolder, *, remove: bool) -> None:
    """Raise StateConflict if the store has images that are not encrypted, or somebody is writing to such a store.
    `remove`: put one without images away, and remove that, unless this fails: it is left then (`left_in`).
    """
    if not folder.exists() or read_config(folder.config).cipher != PLAIN:
        return
    folder.complete()
    with folder.writing("encrypt"):
        images = len(listed(folder.images))
        if images:
            said = f"its store has {images} images that are not encrypted, and no file of a store is ever changed"
            next_step = (
                f"export what you need, begin anew ({spelled(str(home), 'setup', '--remove')}, then setup --encrypt), "
                "and import it"
            )
            raise StateConflict("encrypt", f"the home {home}", said, next_step)
        if remove:
            put_away(str(home))
    if remove:
        with contextlib.suppress(OSError):  # no error: the key is needed, as the plain store is gone
            remove_left(str(home))
