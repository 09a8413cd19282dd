"""The manifest of an image: what the image consists of, as canonical JSON (RFC 8785). Its SHA-256 is the image's id.

Time, host and names are no part of it, so that equal content has an equal id everywhere.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import rfc8785

from waypoint.model.errors import StoreDamaged

FORMAT = 1
MAX_BYTES = 8 << 20
ANOTHER = "choose another capture ('waypoint log --all' lists them)"

Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ImageLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layer of an image. `roots`: the digests of its folders (ROOT objects), by name. `facts`: its record."""

    roots: dict[str, Hex] = {}
    facts: dict[str, Any] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of an image. `parents`: the ids of the images that it continues; the store need not have them.
    `layers`: by kind. `platform`: what the layers need of a machine. `facts`: the facts of the capture.
    """

    format: int
    parents: list[Hex]
    layers: dict[str, ImageLayer]
    platform: dict[str, Any]
    facts: dict[str, Any]

    def roots(self) -> list[bytes]:
        return [bytes.fromhex(digest) for layer in self.layers.values() for digest in layer.roots.values()]


def encode(manifest: Manifest) -> bytes:
    """Return the canonical bytes. Raises ValueError for text with lone surrogates and numbers beyond 2**53."""
    try:
        return rfc8785.dumps(msgspec.to_builtins(manifest))
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


def id_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def decode(image_id: str, content: bytes) -> Manifest:
    """Return the manifest with these bytes. Raises StoreDamaged unless they are those of `image_id`, and canonical."""
    if id_of(content) != image_id:
        raise damaged(image_id, "its manifest has another SHA-256")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
        is_canonical = encode(manifest) == content
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise damaged(image_id, f"its manifest cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise damaged(image_id, f"its format is {manifest.format}; this version of Waypoint reads {FORMAT}")
    if not is_canonical:
        raise damaged(image_id, "its manifest is not in canonical form")
    return manifest


def new(
    parents: list[str], layers: Mapping[str, ImageLayer], platform: dict[str, Any], facts: dict[str, Any]
) -> Manifest:
    return Manifest(format=FORMAT, parents=parents, layers=dict(layers), platform=platform, facts=facts)


def damaged(image_id: str, said: str) -> StoreDamaged:
    return StoreDamaged("read", f"image {image_id[:12]}", said, ANOTHER)
