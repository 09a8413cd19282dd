"""Who has made an export: an Ed25519 signature (RFC 8032) of the image's id and the digest of the whole."""

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waypoint.model.errors import UsageProblem

KEY_BYTES, SIGNATURE_BYTES = 32, 64
_BEGIN = b"waypoint/export/1/signed"
_RAW = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
_MAKE_PRIVATE = "make one: openssl genpkey -algorithm ed25519 -out FILE"
_MAKE_PUBLIC = "make it from the private one: openssl pkey -in KEYFILE -pubout -out FILE"


def private_key(content: bytes) -> Ed25519PrivateKey:
    """The key in a file that openssl or ssh-keygen has made. Raises UsageProblem if it is none, or sealed."""
    load = serialization.load_pem_private_key
    if b"OPENSSH PRIVATE KEY" in content:
        load = serialization.load_ssh_private_key
    try:
        key = load(content, None)
    except TypeError as error:
        raise UsageProblem("sign with", "the key", "it is sealed by a passphrase of its own", _MAKE_PRIVATE) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageProblem("sign with", "the key", "it is no private key in PEM", _MAKE_PRIVATE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageProblem("sign with", "the key", "it is no Ed25519 key", _MAKE_PRIVATE)
    return key


def public_key(content: bytes) -> bytes:
    """The 32 bytes of the public key in a file: PEM, or a line of ssh-keygen's. Raises UsageProblem if it is none."""
    load = serialization.load_pem_public_key
    if content.startswith(b"ssh-"):
        load = serialization.load_ssh_public_key
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageProblem("use", "the key of the signer", "it is no public key", _MAKE_PUBLIC) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageProblem("use", "the key of the signer", "it is no Ed25519 key", _MAKE_PUBLIC)
    return key.public_bytes(*_RAW)


def public_of(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(*_RAW)


def signed(image: bytes, digest: bytes) -> bytes:
    """What is signed. `image`: the image's id, `digest`: that of the whole; of 32 bytes each."""
    return _BEGIN + image + digest


def is_signature(signer: bytes, signature: bytes, image: bytes, digest: bytes) -> bool:
    """Whether the signature was made with the private key of `signer`, a public one, for this image and digest."""
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, signed(image, digest))
    except (InvalidSignature, ValueError):
        return False
    return True
