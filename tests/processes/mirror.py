"""A caching HTTP proxy for a Debian mirror."""

import contextlib
import hashlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAR_S = 60.0  # timeout for one file from a distant mirror


class _Keeper(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.upstream = upstream.rstrip("/")
        self.folder = folder
        self.lock = threading.Lock()

    def fetch(self, path: str) -> bytes | None:
        """Return the content of a file; None if the upstream does not have it."""
        kept = self.folder / hashlib.sha256(path.encode()).hexdigest()
        with self.lock:
            if not kept.exists():
                try:
                    with urllib.request.urlopen(f"{self.upstream}{path}", timeout=FAR_S) as answer:
                        kept.write_bytes(answer.read())
                except urllib.error.HTTPError:
                    return None
        return kept.read_bytes()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, _Keeper)
        content = self.server.fetch(self.path.removeprefix("/debian"))
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client was killed
            self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


@contextlib.contextmanager
def kept_mirror(upstream: str, folder: Path) -> Iterator[str]:
    """Yield the address of a mirror of `upstream`, which caches files in `folder`."""
    with _Keeper(upstream, folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/debian"
        finally:
            server.shutdown()
            thread.join()
