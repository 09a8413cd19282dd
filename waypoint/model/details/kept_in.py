"""Where the content of a capture is, as answers tell it. Standard library only."""

from typing import Literal

KeptIn = Literal["memory", "disk", "torn", "store", "store alone"]
"""`memory`: its processes' images go with the machine's power. `disk`: not in the store yet, so what a power loss
leaves of it may be torn. `torn`: such a power loss was. `store`: it is durable. `store alone`: it was evicted, too.
"""
