"""A copy of a program in memory that nobody can change any more (memfd_create(2), F_ADD_SEALS in fcntl(2)).

A process of Waypoint's that executes a program in a session can be made to execute its own program there: by a script
that begins with `#!/proc/self/exe`. The session then has a way to the file of that program, and could write to it
later, for all who run it. To a sealed copy nobody can ever write.
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

    Each user gets a copy of its own, because seals do not protect the mode: the root of a session with the host's ids
    could change the mode, and then nobody could execute the copy.
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
