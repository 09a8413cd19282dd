"""The signature of an archive: Ed25519 (RFC 8032), of its manifest's descriptor, in a DSSE envelope.

Source: the DSSE protocol 1.0.2 (secure-systems-lab).
"""

import base64
import hashlib

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waypoint.model.errors import UsageProblem

PAYLOAD_TYPE = "application/vnd.oci.descriptor.v1+json"
_MAKE_PRIVATE = "make one: openssl genpkey -algorithm ed25519 -out KEY"
_MAKE_PUBLIC = "make it from the private key: openssl pkey -in KEY -pubout -out PUBLIC"


class _Signature(msgspec.Struct):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


def sign(payload: bytes, key_path: str, key: bytes) -> bytes:
    """Return the envelope. `key`: the content of a file made by `openssl genpkey`. Raises UsageProblem."""
    try:
        private = serialization.load_pem_private_key(key, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise UsageProblem(
            "sign with", key_path, "it is no private key in PEM without a password", _MAKE_PRIVATE
        ) from (error)
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageProblem("sign with", key_path, "it is no Ed25519 key", _MAKE_PRIVATE)
    public = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = _Signature(_text(private.sign(_encoded(payload))), hashlib.sha256(public).hexdigest())
    return msgspec.json.encode(_Envelope(_text(payload), PAYLOAD_TYPE, [signature]))


def is_signed(envelope: bytes, payload: bytes, key_path: str, key: bytes) -> bool:
    """Whether the envelope has a signature of `payload` with the public key, in PEM. Raises UsageProblem."""
    try:
        public = serialization.load_pem_public_key(key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageProblem("verify with", key_path, "it is no public key in PEM", _MAKE_PUBLIC) from error
    if not isinstance(public, Ed25519PublicKey):
        raise UsageProblem("verify with", key_path, "it is no Ed25519 key", _MAKE_PUBLIC)
    try:
        found = msgspec.json.decode(envelope, type=_Envelope)
        if found.payload_type != PAYLOAD_TYPE or base64.b64decode(found.payload, validate=True) != payload:
            return False
        signatures = [base64.b64decode(one.sig, validate=True) for one in found.signatures]
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return False
    return any(_is_valid(public, one, payload) for one in signatures)


def _is_valid(public: Ed25519PublicKey, signature: bytes, payload: bytes) -> bool:
    try:
        public.verify(signature, _encoded(payload))
    except InvalidSignature:
        return False
    return True


def _encoded(payload: bytes) -> bytes:
    """The signed bytes: the pre-authentication encoding of DSSE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
