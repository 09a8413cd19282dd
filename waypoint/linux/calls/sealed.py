"""A read-only copy of a program in memory (memfd_create(2), F_ADD_SEALS in fcntl(2)).

When a Waypoint process executes a program in a session, a script that begins with `#!/proc/self/exe` makes it execute
its own binary there. The session could then open that binary and overwrite it for every user of the host. A sealed copy
cannot be written.
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
    """Yield the path of a new sealed copy of the file `program`. Other processes can use the path, too, during the
    `with` block. A running copy stays in memory. Takes some milliseconds.

    Copies are not shared between sessions, because seals do not protect the file's mode: root in a session with the
    host's ids could make a shared copy unexecutable.
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
