"""What the operation log says of changes of the machine's files."""

import msgspec


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation has done to the machine's files. `journal`: the id of the journal that has kept what was there
    before. `branch`, `capture`: whose changes they were; no capture where others were taken back. `files`: how many
    changed.
    """

    journal: str
    branch: str
    capture: str = ""
    files: int
