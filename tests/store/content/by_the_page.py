"""Reads a store, or an export, by docs/format.md alone: nothing here is Waypoint's. Slow, and trusts what it reads."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KINDS = ("data", "tree", "list", "root", "manifest")


def digest_of(kind: int, content: bytes) -> bytes:
    return blake3(content, derive_key_context=f"waypoint/store/1/{KINDS[kind]}").digest()


def derived(master: bytes, purpose: str) -> bytes:
    return blake3(master, derive_key_context=f"waypoint/store/1/key {purpose}").digest()


def stretched(passphrase: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(passphrase, salt=salt, n=n, r=r, p=p, maxmem=1 << 30, dklen=32)


class Objects:
    """`objects`: the content of each object, by digest; `images`: manifest and what else is told, by id."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.images: dict[str, tuple[bytes, bytes]] = {}

    def tree(self, root: str) -> dict[str, Any]:
        """Everything in the folder: by path, contents of files as bytes, links as str, folders as their modes."""
        entry, _ = msgspec.msgpack.decode(self.objects[bytes.fromhex(root)])
        return dict(self._inside(entry, ""))

    def linked(self, root: str) -> list[list[bytes]]:
        """The paths of each file with several names."""
        _, rows = msgspec.msgpack.decode(self.objects[bytes.fromhex(root)])
        return msgspec.msgpack.decode(self._joined(rows)) if rows else []

    def _inside(self, folder: list[Any], above: str) -> Any:
        for part, count in folder[7]:
            entries = msgspec.msgpack.decode(self.objects[part])
            assert len(entries) == count
            for entry in entries:
                path = f"{above}{entry[0].decode()}"
                if entry[1] == 1:
                    yield path, oct(entry[2])
                    yield from self._inside(entry, f"{path}/")
                elif entry[1] == 0:
                    rows = [row for part, _ in entry[7] for row in self._list(part)] if entry[8] else entry[7]
                    yield path, self._joined(rows)
                else:
                    yield path, entry[9].decode() if entry[1] == 2 else entry[1]

    def _list(self, digest: bytes) -> list[Any]:
        rows: list[Any] = msgspec.msgpack.decode(self.objects[digest])
        return rows

    def _joined(self, rows: list[Any]) -> bytes:
        return b"".join(bytes(size) if digest is None else self.objects[digest] for digest, size in rows)


class Page(Objects):
    """A store."""

    def __init__(self, folder: Path, secret: bytes = b"") -> None:
        """`secret`: the content of the key file, or the passphrase."""
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        master = bytes.fromhex(config["master"])
        if config["cipher"] == 1:
            scrypt = config["scrypt"]
            key = derived(secret, "file")
            if scrypt:
                key = stretched(secret, bytes.fromhex(scrypt["salt"]), scrypt["n"], scrypt["r"], scrypt["p"])
            master = AESGCM(key).decrypt(master[:12], master[12:], config["id"].encode())
        self._hash_key, self._seal_key = derived(master, "hash"), derived(master, "seal")
        self._stored: dict[bytes, tuple[int, int, bytes, bytes | None]] = {}
        for pack in (folder / "packs").iterdir():
            self._read_pack(pack)
        contents = {address: self._content(address) for address in self._stored}
        self.objects = {digest_of(self._stored[one][0], content): content for one, content in contents.items()}
        for address, content in contents.items():
            digest = digest_of(self._stored[address][0], content)
            assert blake3(digest, key=self._hash_key).digest() == address
        self.images = {path.name: self._read_image(path) for path in (folder / "images").iterdir()}

    def _open(self, cipher: int, salt: bytes, number: int, payload: bytes, about: bytes) -> bytes:
        if cipher == 0:
            return payload
        key = blake3(salt, key=self._seal_key).digest()
        return AESGCM(key).decrypt(number.to_bytes(12, "big"), payload, about)

    def _read_pack(self, path: Path) -> None:
        content = path.read_bytes()
        assert content[:7] == b"WPpack\x01"
        cipher, salt = content[7], content[8:40]
        assert blake3(content[:-32]).digest() == content[-32:]
        assert path.name == f"{content[-32:].hex()}.pack"
        assert content[-40:-32] == b"WPends\r\n"
        length, count = struct.unpack("<II", content[-48:-40])
        directory = self._open(cipher, salt, count, content[-48 - length : -48], b"directory")
        place = 40
        for number, row in enumerate(msgspec.msgpack.decode(directory)):
            address, kind, codec, stored, size, base = row
            about = address + bytes([kind, codec]) + str(size).encode() + (base or b"")
            payload = self._open(cipher, salt, number, content[place : place + stored], about)
            self._stored[address] = kind, codec, payload, base
            place += stored

    def _content(self, address: bytes) -> bytes:
        _, codec, payload, base = self._stored[address]
        if codec == 0:
            return payload
        if codec == 1:
            return zstandard.ZstdDecompressor().decompress(payload)
        assert base is not None
        prefix = zstandard.ZstdCompressionDict(self._content(base), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        return zstandard.ZstdDecompressor(dict_data=prefix).decompress(payload)

    def _read_image(self, path: Path) -> tuple[bytes, bytes]:
        content = path.read_bytes()
        assert blake3(content[:-32]).digest() == content[-32:]
        assert content[:7] == b"WPimag\x01"
        cipher, codec, length = content[7], content[8], int.from_bytes(content[9:13], "little")
        payload = self._open(cipher, content[13:45], 0, content[45:-32], path.name.encode())
        whole = payload if codec == 0 else zstandard.ZstdDecompressor().decompress(payload)
        assert len(whole) == length
        manifest, about = msgspec.msgpack.decode(whole)
        assert digest_of(4, manifest).hex() == path.name
        return manifest, about


class PageOfExport(Objects):
    """An export. `name`: what the last image was called. `signer`: the public key of who has signed it, or b""."""

    def __init__(self, content: bytes, passphrase: bytes = b"") -> None:
        super().__init__()
        assert content[:7] == b"WPexpo\x01"
        cipher, signed, n, r, p, salt = struct.unpack("<BBIII32s", content[7:53])
        key = AESGCM(blake3(salt, key=stretched(passphrase, salt, n, r, p)).digest()) if cipher else None
        place, number, kinds = 53, 0, []
        while place < len(content):
            begin, length = place, int.from_bytes(content[place : place + 4], "little")
            piece = content[place + 4 : place + 4 + length]
            place += 4 + length
            if key is not None:
                piece = key.decrypt(number.to_bytes(12, "big"), piece, content[:53])
            number += 1
            kinds.append(piece[0])
            if piece[0] == 1:
                self._object(piece[1:])
            elif piece[0] == 2:
                manifest, about = msgspec.msgpack.decode(piece[1:])
                self.images[digest_of(4, manifest).hex()] = manifest, about
            else:
                told = msgspec.msgpack.decode(piece[1:])
                self.name, count, _ = told if piece[0] == 0 else (self.name, len(self.images), None)
        assert kinds == [0, *[1] * len(self.objects), *[2] * count, 3]
        digest, self.signer, signature = told
        assert blake3(content[:begin], derive_key_context="waypoint/export/1").digest() == digest
        assert bool(self.signer) == bool(signature) == signed
        if signed:
            image = bytes.fromhex(list(self.images)[-1])
            key_of_signer = Ed25519PublicKey.from_public_bytes(self.signer)
            key_of_signer.verify(signature, b"waypoint/export/1/signed" + image + digest)

    def _object(self, content: bytes) -> None:
        kind, codec, length, digest = struct.unpack("<BBI32s", content[:38])
        found = content[38:] if codec == 0 else zstandard.ZstdDecompressor().decompress(content[38:])
        assert (len(found), digest_of(kind, found)) == (length, digest)
        self.objects[digest] = found
