"""A program that runs in a session and keeps a count in memory, in a file, and in a peer process that it reaches over a
TCP connection. A client that connects to PORT and writes `add` or `look` gets all three counts as JSON.

The argument is the folder of the file. It runs on the session's own Python, so it uses the standard library only.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

PORT = 7001
ASK = (
    f"ask() {{ local reply=; exec 3<>/dev/tcp/127.0.0.1/{PORT} && echo $1 >&3 && read -r -t 5 reply <&3;"
    " exec 3>&-; echo $reply; }"
)
"""Shell text for bash that defines `ask`, which sends a word to the program and prints the answer."""
WORD_BYTES = 8


def main() -> None:
    file = Path(sys.argv[1], "count")
    count = 0
    file.write_text("0")
    server = socket.create_server(("127.0.0.1", PORT))
    ours = _start_peer(server)
    while True:
        with server.accept()[0] as asker:
            if asker.recv(10).startswith(b"add"):
                count += 1
                file.write_text(str(count))
                peer = _tell(ours, b"+")
            else:
                peer = _tell(ours, b"?")
            said = {"memory": count, "file": int(file.read_text()), "peer": peer}
            asker.sendall(json.dumps(said).encode() + b"\n")


def _tell(ours: socket.socket, sign: bytes) -> int:
    """Send `sign` to the peer and return its count. If a signal has ended the peer, end this process with it."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        ours.sendall(sign * WORD_BYTES)
        answer = ours.recv(WORD_BYTES, socket.MSG_WAITALL)
    if not answer:
        _, status = os.waitpid(-1, 0)
        if os.WIFSIGNALED(status):
            signal.raise_signal(os.WTERMSIG(status))
    return int(answer)


def _start_peer(server: socket.socket) -> socket.socket:
    """Start the peer, which also counts. Return a TCP connection to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    listener.close()
    if os.fork() == 0:
        server.close()
        ours.close()
        count = 0
        while word := theirs.recv(WORD_BYTES, socket.MSG_WAITALL):
            count += word == b"+" * WORD_BYTES
            theirs.sendall(str(count).encode().rjust(WORD_BYTES))
        os._exit(0)
    theirs.close()
    return ours


if __name__ == "__main__":
    main()
