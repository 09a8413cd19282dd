"""What a session reaches, tried by a program in it."""

import json

from tests.acceptance.outside import ECHO, PACKETS, HomeThere, Outside
from tests.acceptance.sessions import inside

TRY = """python3 -c '
import socket, sys, time
began, kind = time.monotonic(), {kind}
try:
    family, *_, address = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=kind)[0]
    with socket.socket(family, kind) as one:
        one.settimeout(8)
        one.connect(address)
        one.send(b"GET / HTTP/1.0\\r\\n\\r\\n")
        said = one.recv(100)
    print("reached" if said else "ended", end="")
except OSError as error:
    print(type(error).__name__, end="")
print("", "late" if time.monotonic() - began > 3 else "at once")
' {address} {port}"""
REACHED = "reached at once\n"


def tried(home: HomeThere, branch: str, address: str, port: int = ECHO, *, udp: bool = False) -> str:
    kind = "socket.SOCK_DGRAM" if udp else "socket.SOCK_STREAM"
    return inside(home, branch, TRY.format(kind=kind, address=address, port=port))


def pasta_of(home: HomeThere) -> int:
    return int(json.loads((home.runtime / "router.json").read_bytes())["pid"])


def outside_command(outside: Outside, code: str) -> list[str]:
    return ["nsenter", "-t", str(outside.host), "-n", "python3", "-c", code]


def packets(home: HomeThere, branch: str, code: str) -> str:
    return inside(home, branch, f"python3 -c '{PACKETS}\n{code}'")
