"""The answers of the control interface, as records: the daemon makes them, the SDK parses them. Standard library only.

A field without a default is in every answer. A time is a text: UTC, ISO 8601, to the millisecond.

A record is made when it is asked for: all of them take 15 ms of a processor, and a command uses one or two.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.details.applied_facts import AppliedFacts as AppliedFacts
    from waypoint.model.details.disk_facts import DuFacts as DuFacts
    from waypoint.model.details.image_facts import ExportedFacts as ExportedFacts
    from waypoint.model.details.image_facts import ImportedFacts as ImportedFacts
    from waypoint.model.details.layer_facts import AttachedFacts as AttachedFacts
    from waypoint.model.details.layer_facts import AttachingFacts as AttachingFacts
    from waypoint.model.details.mount_facts import MountedFacts as MountedFacts
    from waypoint.model.details.process_facts import SurveyedProcess as SurveyedProcess
    from waypoint.model.details.profile_facts import MatchFacts as MatchFacts
    from waypoint.model.details.profile_facts import ProfileFacts as ProfileFacts
    from waypoint.model.details.profile_facts import ProfilesFacts as ProfilesFacts
    from waypoint.model.details.store_facts import EvictedFacts as EvictedFacts
    from waypoint.model.details.store_facts import VerifiedFacts as VerifiedFacts
    from waypoint.model.facts.checkpoint_facts import CheckpointFacts as CheckpointFacts
    from waypoint.model.facts.doctor_facts import Capability as Capability
    from waypoint.model.facts.fork_facts import ForkFacts as ForkFacts
    from waypoint.model.facts.gc_facts import GcFacts as GcFacts
    from waypoint.model.facts.gc_facts import RemovedFacts as RemovedFacts
    from waypoint.model.facts.gc_facts import SparedFacts as SparedFacts
    from waypoint.model.facts.kept_facts import CaptureFacts as CaptureFacts
    from waypoint.model.facts.kept_facts import LayerFacts as LayerFacts
    from waypoint.model.facts.limit_facts import LimitFacts as LimitFacts
    from waypoint.model.facts.live_facts import ExchangedFacts as ExchangedFacts
    from waypoint.model.facts.live_facts import ReplacedFacts as ReplacedFacts
    from waypoint.model.facts.live_facts import RestoredFacts as RestoredFacts
    from waypoint.model.facts.live_facts import SessionFacts as SessionFacts
    from waypoint.model.facts.name_facts import BranchFacts as BranchFacts
    from waypoint.model.facts.name_facts import NameFacts as NameFacts
    from waypoint.model.facts.operation_facts import OperationFacts as OperationFacts
    from waypoint.model.facts.operation_facts import UndoFacts as UndoFacts
    from waypoint.model.facts.operation_facts import UndoneFacts as UndoneFacts
    from waypoint.model.facts.status_facts import StatusFacts as StatusFacts
    from waypoint.model.facts.stop_facts import StopFacts as StopFacts
    from waypoint.model.facts.stop_facts import StopsFacts as StopsFacts
    from waypoint.model.facts.stranger_facts import StrangerFacts as StrangerFacts

PLACES = {
    "details.applied_facts": ("AppliedFacts",),
    "details.disk_facts": ("DuFacts",),
    "details.image_facts": ("ExportedFacts", "ImportedFacts"),
    "details.layer_facts": ("AttachedFacts", "AttachingFacts"),
    "details.mount_facts": ("MountedFacts",),
    "details.process_facts": ("SurveyedProcess",),
    "details.profile_facts": ("MatchFacts", "ProfileFacts", "ProfilesFacts"),
    "details.store_facts": ("EvictedFacts", "VerifiedFacts"),
    "facts.checkpoint_facts": ("CheckpointFacts",),
    "facts.doctor_facts": ("Capability",),
    "facts.fork_facts": ("ForkFacts",),
    "facts.gc_facts": ("GcFacts", "RemovedFacts", "SparedFacts"),
    "facts.kept_facts": ("CaptureFacts", "LayerFacts"),
    "facts.limit_facts": ("LimitFacts",),
    "facts.live_facts": ("ExchangedFacts", "ReplacedFacts", "RestoredFacts", "SessionFacts"),
    "facts.name_facts": ("BranchFacts", "NameFacts"),
    "facts.operation_facts": ("OperationFacts", "UndoFacts", "UndoneFacts"),
    "facts.status_facts": ("StatusFacts",),
    "facts.stop_facts": ("StopFacts", "StopsFacts"),
    "facts.stranger_facts": ("StrangerFacts",),
}
"""By module below waypoint.model, the records in it."""


if not TYPE_CHECKING:  # for mypy, this module has what is imported above, and nothing else

    def __getattr__(name: str) -> object:
        for module, records in PLACES.items():
            if name in records:
                found = getattr(__import__(f"waypoint.model.{module}", fromlist=[name]), name)
                globals()[name] = found  # the next time, this function is not called
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
