"""`waypoint setup --encrypt`: making the encrypted store of a home, and its key file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waypoint.capture.storing.keys import STAYS_PLAIN, Encryption, encryption_of, read_key_file
from waypoint.linux.storage import files
from waypoint.model.errors import UsageProblem
from waypoint.model.paths import as_root, is_below
from waypoint.store import encryption, locking
from waypoint.store.encryption import Secret

FOLDER, NAME = "keys", "store.key"


def encrypt(home: Path, key_file: str, passphrase: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Make the store encrypted, and return what config.json gets. May be repeated after a failure or a kill.

    `key_file`: "": the usual one. `passphrase`: "": a key file unlocks the store. Raises StateConflict if the store has
    content that is not encrypted, or if another secret unlocks it.
    """
    store, known = str(home / "store"), encryption_of(home)
    is_new = locking.check_can_encrypt(store, "passphrase" if passphrase else "key-file")
    if passphrase:
        locking.make_encrypted(store, Secret("passphrase", passphrase.encode()))
        unlock = as_root(str(home), "setup", "--unlock")
        say(f"encrypted {store}: a passphrase unlocks it; after each start of the daemon: {unlock}")
        _say_the_rest(store, "the passphrase", say)
        return _settings(Encryption(), known)
    path = key_file or (known.key_file if known is not None else "") or str(home / FOLDER / NAME)
    if is_below(path, store):
        raise UsageProblem("use", f"the key file {path}", "it would lie in the store", "choose another folder")
    if is_new and not os.path.lexists(path):
        if not key_file:
            files.make_folder(os.path.dirname(path), 0o700)
        files.publish(path, encryption.new_secret())
        say(f"made the key file {path}")
    locking.make_encrypted(store, Secret("key-file", read_key_file(path, store).encode()))
    say(f"encrypted {store}: the key file {path} unlocks it")
    if is_below(path, str(home)):
        step = "move it to another one, and repeat setup with --encrypt --key-file PATH"
        say(f"this protects copies of the store only: whoever gets the whole disk has the key file, too; or {step}")
    elif not is_below(path, "/run"):
        say("sessions of root can read the key file, as all files of root outside of the home and of /run")
    _say_the_rest(store, path, say)
    return _settings(Encryption(key_file=path), known)


def _settings(found: Encryption, known: Encryption | None) -> dict[str, Any]:
    # Copies of captures outside of the store are not encrypted, so they are removed soon. Root may change that later.
    return {"encryption": {"key_file": found.key_file}} | ({"hot_budget_bytes": 0} if known is None else {})


def _say_the_rest(store: str, secret: str, say: Callable[[str], None]) -> None:
    say(f"keep copies of {secret} and of {store}/config.json elsewhere: without both, nobody can read the captures")
    say(f"not encrypted: {STAYS_PLAIN}; for these, put the home on an encrypted disk (dm-crypt) and encrypt swap")
