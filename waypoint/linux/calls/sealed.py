"""A copy of a program in memory that nobody can change any more (memfd_create(2), F_ADD_SEALS in fcntl(2)).

Whoever executes a program in a session can be led to execute itself once more there (a script that begins with
`#!/proc/self/exe`). What the session has then is the program of that process, to be written to later, if the rights of
its file allow that. Of this copy they never do.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

_MFD_EXEC = 0x10  # Linux 6.3; without it, the setting vm.memfd_noexec decides
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_CHUNK = 1 << 24


@contextlib.contextmanager
def copy_of(program: str) -> Iterator[str]:
    """The path, for the `with` block and for other processes too, of a new sealed copy of the file `program`. The copy
    stays as long as somebody executes it. Takes some milliseconds. Raises OSError.

    A copy has one user: its mode, which no seal keeps, may be changed by whoever is root in a session with the host's
    ids, after which nobody could execute it.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    name = os.path.basename(program)
    try:
        copy = os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        copy = os.memfd_create(name, flags)
    try:
        with open(program, "rb") as origin:
            while os.sendfile(copy, origin.fileno(), None, _CHUNK):
                pass
        os.fchmod(copy, 0o555)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
        yield f"/proc/{os.getpid()}/fd/{copy}"
    finally:
        os.close(copy)
