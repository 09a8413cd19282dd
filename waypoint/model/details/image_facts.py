"""Answers about images that leave or come, as records (model/facts). Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFacts:
    """`capture`, `image`: what was exported. `images`: how many, with those that it goes on from; `left_out`: in words,
    which are not among them. `objects`, `size_bytes`: of the export. `encrypted`: by a passphrase; `signed`: by a key.
    """

    capture: str
    image: str
    images: int
    left_out: list[str]
    objects: int
    size_bytes: int
    encrypted: bool
    signed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFacts:
    """`name`: of the checkpoint that was made. `capture`, `image`: what it stands for. `images`: how many came with it,
    of which `new` were not there. `added_bytes`: by how much the store grew. `signer`: the public key of who has signed
    it, in hex; "": nobody. `elsewhere`: in words, what of it cannot come back on this machine. `left_out`: in words,
    what it goes on from that is not in the export.
    """

    name: str
    capture: str
    image: str
    images: int
    new: int
    added_bytes: int
    signer: str
    elsewhere: list[str]
    left_out: list[str]
