"""A program that runs inside a session: `outside_talker.py FOLDER` talks through Unix sockets in the folder.

It connects to the socket `server`, listens at the socket `client`, and accepts one connection. It writes `ready` to
the FIFO `said`; when the FIFO `ask` is opened, it writes what it reads from both connections after a word to each.
"""

import os
import socket
import sys


def talk(one: socket.socket) -> str:
    """Send a word on the connection, if it is open, and return all that can be read until `.` or the end."""
    read = b""
    try:
        one.send(b"word.")
    except BrokenPipeError:
        read = b"closed:"
    while not read.endswith(b".") and (more := one.recv(100)):
        read += more
    return read.decode()


os.chdir(sys.argv[1])
server, listener = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.connect("server")
listener.bind("client")
os.chmod("client", 0o777)
listener.listen()
client, _ = listener.accept()
for name in ("ready", "asked"):
    os.mkfifo(f"/root/{name}")
with open("/root/ready", "w"):
    pass
with open("/root/asked", "w") as said:
    print(talk(server), talk(client), file=said)
