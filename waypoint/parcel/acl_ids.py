"""Access control lists as the kernel tells them in extended attributes (acl(5)): whose rights they name."""

import struct
from collections.abc import Callable

ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_HEAD_BYTES = 4  # the version
_ENTRY = struct.Struct("<HHI")  # tag, rights, id
_NAMED = (0x02, 0x08)  # ACL_USER, ACL_GROUP: the entries whose id counts


def with_ids(acl: bytes, of: Callable[[int], int]) -> bytes:
    """The list with another id in place of each that it names. What is no list stays: the kernel refuses it."""
    if (len(acl) - _HEAD_BYTES) % _ENTRY.size:
        return acl
    entries = _ENTRY.iter_unpack(acl[_HEAD_BYTES:])
    mapped = (_ENTRY.pack(tag, rights, of(one) if tag in _NAMED else one) for tag, rights, one in entries)
    return acl[:_HEAD_BYTES] + b"".join(mapped)
