"""Answers to a `doctor`, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of `doctor`: a capability that was tried on this machine, whether it works, why not, what to do.

    `required_for`: who needs the capability: `session` every session, `live` captures with processes, `optional` none.
    """

    name: str
    state: Literal["ok", "missing", "degraded"]
    why: str = ""
    remedy: str = ""
    required_for: Literal["session", "live", "optional"] = "optional"
