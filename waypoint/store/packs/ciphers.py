"""How the payloads of one file of a store are kept from who has the file but no key, and told from other bytes.

Each file has a key of its own, made from the store's key and the file's salt; each payload in it has a number that no
other has. So no pair of key and nonce is ever used twice (NIST SP 800-38D, section 8.2.1), whatever a crash repeats.
"""

import os
from typing import Protocol

from blake3 import blake3

SALT_BYTES = 32
_NONCE_BYTES = 12

PLAIN = 0
AES_256_GCM = 1


class WrongBytes(Exception):
    """A payload is not what was sealed: the key is another one, or a bit is."""


class Cipher(Protocol):
    """Of one file. `number` says which payload; `about` is not kept, but must be the same when a payload is opened."""

    def seal(self, number: int, content: bytes, about: bytes) -> bytes: ...

    def open(self, number: int, payload: bytes, about: bytes) -> bytes:
        """Raises WrongBytes."""
        ...


class _Plain:
    def seal(self, number: int, content: bytes, about: bytes) -> bytes:
        return content

    def open(self, number: int, payload: bytes, about: bytes) -> bytes:
        return payload


class _AesGcm:
    def __init__(self, key: bytes, salt: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # not loaded for a store that is not encrypted
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(blake3(salt, key=key).digest())
        self._wrong = InvalidTag

    def seal(self, number: int, content: bytes, about: bytes) -> bytes:
        return self._aead.encrypt(number.to_bytes(_NONCE_BYTES), content, about)

    def open(self, number: int, payload: bytes, about: bytes) -> bytes:
        try:
            return self._aead.decrypt(number.to_bytes(_NONCE_BYTES), payload, about)
        except self._wrong as error:
            raise WrongBytes from error


def cipher_for(kind: int, key: bytes, salt: bytes) -> Cipher:
    """The cipher of a file. `kind`: PLAIN, or AES_256_GCM. `key`: the store's, of 32 bytes. Raises WrongBytes if the
    kind is not known, or needs a key that the store does not have.
    """
    if kind == PLAIN:
        return _Plain()
    if kind != AES_256_GCM or not key:
        raise WrongBytes
    return _AesGcm(key, salt)


def new_salt() -> bytes:
    """Random: for one file."""
    return os.urandom(SALT_BYTES)
