"""Runs in a session: half-closed TCP connections, and 1,000 files that are written over and over.

It works slowly until /tmp/busy/go exists, then does the rest of its fixed amount of work at full speed. So its results
do not depend on when `go` was made: a file `<name>.sha256` for each connection, and the content of the folder `files`.
"""

import hashlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path("/tmp/busy")
GO = FOLDER / "go"
FILES, TURNS = 1000, 15
BLOCK, BLOCKS = 4096, 6000
BLOCK_S, FILE_S = 0.01, 0.003  # pauses of a reader after each block, and of the writer after each file


def pace(pause_s: float, *, is_reserved: bool = False) -> None:
    """Until GO exists: wait for a moment, or, before work that is reserved for the end, for GO."""
    while not GO.exists():
        time.sleep(pause_s)
        if not is_reserved:
            return


def send(end: socket.socket, name: str) -> None:
    content = random.Random(name)
    for number in range(BLOCKS):
        pace(0.001, is_reserved=number > BLOCKS * 3 // 4)
        end.sendall(content.randbytes(BLOCK))
    end.close()


def receive(end: socket.socket, name: str) -> None:
    """Read to the end, more slowly than the peer sends, so that bytes are always unread; write the checksum."""
    digest = hashlib.sha256()
    while part := end.recv(BLOCK):
        digest.update(part)
        pace(BLOCK_S)
    (FOLDER / f"{name}.sha256").write_text(f"{digest.hexdigest()}\n")


def serve(listener: socket.socket, family: str) -> None:
    """Send a download to a client that has sent its FIN; send a FIN to a client that then sends an upload."""
    for _ in range(2):
        end = listener.accept()[0]
        if end.recv(1) == b"d":
            assert end.recv(1) == b""
            start(send, end, f"download-{family}")
        else:
            end.shutdown(socket.SHUT_WR)
            start(receive, end, f"upload-{family}")


def connect(listener: socket.socket, family: str) -> None:
    for way, work in (("download", receive), ("upload", send)):
        end = socket.create_connection(listener.getsockname()[:2])
        end.sendall(way[:1].encode())
        if way == "download":
            end.shutdown(socket.SHUT_WR)
        else:
            assert end.recv(1) == b""
        start(work, end, f"{way}-{family}")


def start(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given).start()


def write_files(folder: Path) -> None:
    """Append to files that stay open and to others; replace others by a rename, and by a removal."""
    kept = [(folder / f"{number}").open("w", buffering=1) for number in range(0, FILES, 4)]
    for turn in range(TURNS):
        for number in range(FILES):
            pace(FILE_S, is_reserved=turn == TURNS - 1)
            path, line = folder / f"{number}", f"{turn} of {number}\n"
            if number % 4 == 0:
                kept[number // 4].write(line)
            elif number % 4 == 1:
                with path.open("a") as file:
                    file.write(line)
            elif number % 4 == 2:
                new = folder / f"new-{number}"
                new.write_text(line * (turn + 1))
                new.rename(path)
            else:
                path.unlink(missing_ok=True)
                path.write_text(line * (turn + 1))


if __name__ == "__main__":
    listeners = {
        "ipv4": socket.create_server(("127.0.0.1", 0)),
        "ipv6": socket.create_server(("::1", 0), family=socket.AF_INET6),
    }
    for act in (serve, connect):
        if os.fork() == 0:
            for family, listener in listeners.items():
                act(listener, family)
            for thread in threading.enumerate()[1:]:
                thread.join()
            os._exit(0)
    (FOLDER / "files").mkdir()
    (FOLDER / "begun").touch()
    write_files(FOLDER / "files")
    os.wait()
    os.wait()
    (FOLDER / "done").touch()
