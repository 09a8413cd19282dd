"""Encryption of a store (docs/format.md): its master key, the secret that locks it, and sealing of files.

Each file of an encrypted store has a key of its own, derived from the master key and a random salt in the file. So a
nonce needs to be unique within one file only: it is the place of the part in the file. With one key for the whole store
and random nonces, two of 2^32 objects could have the same nonce; AES-GCM-SIV, which survives that, is twenty times
slower here.

Only encrypted stores import this module: the library takes 60 ms and 17 MB.
Sources: RFC 5869 (HKDF), RFC 7914 (scrypt), NIST SP 800-38D (GCM). Models: borg and restic (a random master key, locked
by a secret that can be lost or changed without writing the packs again), age (a key for each file).
"""

import os
import struct
from typing import Literal, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf import hkdf, scrypt

from waypoint.store.config import SALT_BYTES, LockedKey, Scrypt
from waypoint.store.objects import Buffer, CannotOpen

KEY_BYTES, TAG_BYTES = 32, 16
_NONCE_BYTES = 12
# 128 MiB and a third of a second. The worker process has this memory only while it unlocks the key.
_SCRYPT = Scrypt(n=1 << 17, r=8, p=1)
_FILE = struct.Struct(f"<6sBB{SALT_BYTES}s")
_BEGIN, _VERSION, CIPHER = b"WPseal", 1, 1


class Secret(NamedTuple):
    """Locks a master key. `value`: the content of a key file, or a passphrase."""

    kind: Literal["key-file", "passphrase"]
    value: bytes


class Seal:
    """Seals and opens the parts of one file. `salt`: what the file must contain to be opened again."""

    def __init__(self, salt: bytes, key: bytes) -> None:
        self.salt = salt
        self._cipher = AESGCM(key)

    def seal(self, content: Buffer, place: int, about: bytes) -> bytes:
        """Seal a part; the result is longer by TAG_BYTES. No two parts of a file may have the same `place`. `about`:
        what must be the same when the part is opened (associated data).
        """
        return self._cipher.encrypt(_nonce(place), content, about)

    def open(self, sealed: bytes, place: int, about: bytes) -> bytes:
        """Raises CannotOpen."""
        try:
            return self._cipher.decrypt(_nonce(place), sealed, about)
        except InvalidTag as error:
            raise CannotOpen("it was changed, or sealed with another key") from error


class MasterKey:
    """The master key of a store. `secret`: its bytes."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def addresses(self) -> bytes:
        """The key of the addresses: with it, one can test whether the store has a known file."""
        return _derive(self.secret, b"", b"waypoint/store/1/addresses")

    def new_seal(self) -> Seal:
        """The seal of a new file."""
        return self.seal(os.urandom(SALT_BYTES))

    def seal(self, salt: bytes) -> Seal:
        return Seal(salt, _derive(self.secret, salt, b"waypoint/store/1/file"))

    def seal_file(self, content: bytes, about: bytes) -> bytes:
        """The bytes of a file with one part, the whole content."""
        seal = self.new_seal()
        return _FILE.pack(_BEGIN, _VERSION, CIPHER, seal.salt) + seal.seal(content, 0, about)

    def open_file(self, content: bytes, about: bytes) -> bytes:
        """Raises CannotOpen."""
        if len(content) < _FILE.size:
            raise CannotOpen("it is too short")
        *begin, salt = _FILE.unpack_from(content)
        if begin != [_BEGIN, _VERSION, CIPHER]:
            raise CannotOpen("it is not encrypted")
        return self.seal(salt).open(content[_FILE.size :], 0, about)


def new_secret() -> bytes:
    """The content of a new key file: one line."""
    return f"waypoint-key-1 {os.urandom(KEY_BYTES).hex()}\n".encode()


def lock(master: MasterKey, secret: Secret) -> LockedKey:
    salt, parameters = os.urandom(SALT_BYTES), _SCRYPT if secret.kind == "passphrase" else None
    sealed = _lock_of(secret, salt, parameters).seal(master.secret, 0, b"waypoint/store/1/master")
    return LockedKey(secret=secret.kind, salt=salt.hex(), sealed=sealed.hex(), scrypt=parameters)


def unlock(locked: LockedKey, value: bytes) -> MasterKey:
    """`value`: that of the secret. Raises CannotOpen if it is wrong. Takes a third of a second for a passphrase."""
    seal = _lock_of(Secret(locked.secret, value), bytes.fromhex(locked.salt), locked.scrypt)
    return MasterKey(seal.open(bytes.fromhex(locked.sealed), 0, b"waypoint/store/1/master"))


def _lock_of(secret: Secret, salt: bytes, parameters: Scrypt | None) -> Seal:
    # White space around the secret does not count: editors and `echo` add a line break.
    value = secret.value.strip()
    if secret.kind == "key-file":
        return Seal(salt, _derive(value, salt, b"waypoint/store/1/key-file"))
    if parameters is None:
        raise CannotOpen("the parameters of scrypt are missing")
    try:
        derived = scrypt.Scrypt(salt, KEY_BYTES, parameters.n, parameters.r, parameters.p).derive(value)
    except ValueError as error:
        raise CannotOpen(f"the parameters of scrypt are impossible: {error}") from error
    return Seal(salt, derived)


def _derive(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    return hkdf.HKDF(SHA256(), KEY_BYTES, salt, purpose).derive(secret)


def _nonce(place: int) -> bytes:
    return place.to_bytes(_NONCE_BYTES, "little")
