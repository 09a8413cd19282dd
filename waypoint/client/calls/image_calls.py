"""Captures of a home as images that leave it or come."""

import select

from waypoint.client import wire
from waypoint.client.link import open_channel
from waypoint.client.parsing import parse
from waypoint.model import facts, plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.names import parse_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from waypoint.model.facts import ExportedFacts, ImportedFacts


class ImageCalls:
    """Use Client.images."""

    def __init__(self, home: str) -> None:
        """`home`: its real path."""
        self._home = home

    def export(
        self,
        name: str,
        write: "Callable[[memoryview], object]",
        *,
        alone: bool = False,
        key: str = "",
        passphrase: str = "",
        told: "Callable[[int], object]" = int,
    ) -> "ExportedFacts":
        """Hand an export of what `name` stands for to `write`, piece by piece. `alone`: without what it goes on from.
        `key`: a private key in PEM, which signs it. `passphrase`: what it is encrypted with. `told`: called with about
        how many bytes it will have.

        Raises UnknownName, Failed, StoreDamaged, UsageProblem (the key): what was written is no export then.
        """
        body: dict[str, object] = {"name": parse_name(name), "alone": alone, "key": key, "passphrase": passphrase}
        return parse(facts.ExportedFacts, self._talk("export", body, None, write, told))

    def take(
        self,
        read: "Callable[[], bytes]",
        *,
        name: str | None = None,
        signer: str = "",
        passphrase: str = "",
        trust: bool = False,
    ) -> "ImportedFacts":
        """Import the export that `read` gives piece by piece, to empty bytes, as the checkpoint `name` (None: as it was
        called). `signer`: the public key of who must have signed it, in PEM or as ssh-keygen writes it. `trust`: also
        if its sessions would have more of this machine than others.

        Raises UsageProblem, StateConflict (the name is taken), StoreDamaged, NotAllowed; then nothing was taken in.
        """
        body: dict[str, object] = {"name": name, "signer": signer, "passphrase": passphrase, "trust": trust}
        return parse(facts.ImportedFacts, self._talk("import", body, read, lambda piece: None))

    def _talk(
        self,
        verb: str,
        body: dict[str, object],
        read: "Callable[[], bytes] | None",
        write: "Callable[[memoryview], object]",
        told: "Callable[[int], object]" = int,
    ) -> dict[str, object]:
        """The facts at the stream's end."""
        try:
            channel = open_channel(self._home, f"/v1/{verb}s", body)
            try:
                while True:
                    read = _fed(channel, read)
                    channel.fill()
                    while (item := channel.take()) is not None:
                        if chr(item[0]) == "o":
                            write(item[1])
                        elif chr(item[0]) == "n":
                            _pass_progress(bytes(item[1]), told)
                        elif chr(item[0]) == "x":
                            return _judged(bytes(item[1]))
            finally:
                channel.close()
        except wire.Cut as cut:
            said = f"{cut}: the daemon was stopped or replaced"
            raise Failed(verb, "an image", said, "try again") from cut


def _fed(channel: wire.Channel, read: "Callable[[], bytes] | None") -> "Callable[[], bytes] | None":
    """Send what `read` gives, until something has come from the other side. Returns `read`, None at its end."""
    while read is not None or channel.out.flush():
        queued = channel.out.flush()
        if not queued and read is not None:
            piece = read()
            channel.out.queue("i", piece)
            read = read if piece else None
            continue
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN | select.POLLOUT)
        ((_, events),) = poll.poll()
        if events & ~select.POLLOUT:
            break
    return read


def _pass_progress(payload: bytes, told: "Callable[[int], object]") -> None:
    match plainjson.decode_object(payload).get("progress"):
        case {"bytes_total": int(total)}:
            told(total)
        case _:
            pass


def _judged(payload: bytes) -> dict[str, object]:
    end = plainjson.decode_object(payload)
    parts = end.get("error")
    if isinstance(parts, dict):
        raise from_json(parts)
    return end
