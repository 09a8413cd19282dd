"""Images: one file each, which says what the image consists of. It is written last, and with it the image is there.

```
"WPimag", format (1), cipher, codec, length of the content, salt
payload: MessagePack [manifest, about]
digest of all before
```
`manifest` is what the image's id is the digest of. `about`: what is told of it besides, such as when and where it was
made: the same image may have been made twice.
"""

import os
import struct
from typing import NamedTuple

import msgspec
from blake3 import blake3

from waypoint.linux.storage.files import write_all
from waypoint.model.errors import CannotCapture, StoreDamaged, UnknownName
from waypoint.model.ids import new_id
from waypoint.store.content.keys import Keys
from waypoint.store.content.object_reader import ANOTHER
from waypoint.store.content.store_folder import StoreFolder, listed
from waypoint.store.content.write_steps import WriteStep, reached
from waypoint.store.packs.ciphers import PLAIN, SALT_BYTES, WrongBytes, cipher_for, new_salt
from waypoint.store.packs.codecs import MOST_BYTES, CannotDecode, Codec, decode, encode
from waypoint.store.packs.digests import DIGEST_BYTES, Kind, digest_of

_HEADER = struct.Struct(f"<6sBBBI{SALT_BYTES}s")
_BEGIN, _VERSION = b"WPimag", 1
_MOST_CONTENT = MOST_BYTES - (1 << 20)
ID_DIGITS = 2 * DIGEST_BYTES


class ImageFile(NamedTuple):
    """The content of an image's file."""

    manifest: bytes
    about: bytes


class Images:
    """The images of one store."""

    def __init__(self, folder: StoreFolder, keys: Keys, cipher: int) -> None:
        self._folder = folder
        self._keys = keys
        self._cipher = cipher

    def add(self, image: ImageFile) -> str:
        """Publish an image, of which every object is durable in the store; it is durable on return. Returns its id.

        One that is there already stays as it is, if it can be read. For who holds the lock of writers. Raises OSError,
        CannotCapture if nobody could read it.
        """
        if sum(map(len, image)) > _MOST_CONTENT:
            said = f"what it consists of has more than {_MOST_CONTENT >> 20} MiB of words"
            raise CannotCapture("put into the store", "an image", said, ANOTHER)
        ident = digest_of(Kind.MANIFEST, image.manifest).hex()
        path = f"{self._folder.images}/{ident}"
        if not self._is_there(ident):
            made = f"{self._folder.tmp}/{new_id()}"
            self._write(made, ident, image)
            reached(WriteStep.IMAGE_WRITTEN)
            self._folder.publish(made, path)
            reached(WriteStep.IMAGE_IN_PLACE)
        self._folder.sync(self._folder.images)
        reached(WriteStep.IMAGE_DURABLE)
        return ident

    def _is_there(self, ident: str) -> bool:
        try:
            self.read(ident)
        except (UnknownName, StoreDamaged, OSError):  # the last one: it lies where the disk cannot be read
            return False
        return True

    def read(self, ident: str) -> ImageFile:
        """Raises UnknownName if the store has no such image, StoreDamaged, OSError."""
        try:
            with open(f"{self._folder.images}/{ident}", "rb") as file:
                content = file.read(MOST_BYTES + (1 << 16))
        except FileNotFoundError as error:
            raise UnknownName("read", f"image {ident[:16]}", "the store does not have it") from error
        try:
            image = self._opened(ident, content)
        except (WrongBytes, CannotDecode, msgspec.MsgspecError, struct.error) as error:
            said = f"its bytes are not those that were written {error}".strip()
            raise StoreDamaged("read", f"image {ident[:16]}", said, ANOTHER) from error
        if digest_of(Kind.MANIFEST, image.manifest).hex() != ident:
            raise StoreDamaged("read", f"image {ident[:16]}", "its content is another one", ANOTHER)
        return image

    def list(self) -> list[str]:
        """The ids of all images. Raises OSError."""
        return [name for name in listed(self._folder.images) if len(name) == ID_DIGITS]

    def remove(self, ident: str) -> None:
        """Remove an image; its objects stay until the next compaction. No error if it is not there. Raises OSError."""
        if os.path.exists(f"{self._folder.images}/{ident}"):
            os.unlink(f"{self._folder.images}/{ident}")
            self._folder.sync(self._folder.images)

    def _write(self, path: str, ident: str, image: ImageFile) -> None:
        content = msgspec.msgpack.encode([image.manifest, image.about])
        encoded, salt = encode(content), new_salt()
        sealed = cipher_for(self._cipher, self._keys.seal, salt).seal(0, encoded.payload, ident.encode())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            whole = _HEADER.pack(_BEGIN, _VERSION, self._cipher, encoded.codec, len(content), salt) + sealed
            write_all(fd, whole + blake3(whole).digest())
            os.fsync(fd)
        finally:
            os.close(fd)

    def _opened(self, ident: str, content: bytes) -> ImageFile:
        content, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if blake3(content).digest() != digest:
            raise CannotDecode("they have another digest")
        begin, version, cipher, codec, length, salt = _HEADER.unpack_from(content)
        if (begin, version) != (_BEGIN, _VERSION) or codec not in (Codec.RAW, Codec.ZSTD):
            raise CannotDecode("it is no image of this format")
        if self._keys.seal and cipher == PLAIN:
            raise CannotDecode("it is not encrypted, and all of this store is")
        payload = cipher_for(cipher, self._keys.seal, salt).open(0, content[_HEADER.size :], ident.encode())
        manifest, about = msgspec.msgpack.decode(decode(Codec(codec), payload, length), type=tuple[bytes, bytes])
        return ImageFile(manifest, about)
