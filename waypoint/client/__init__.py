"""The SDK over the control socket: `from waypoint.client import Client`. Standard library only; it starts fast."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.client.sdk import Client as Client
    from waypoint.client.sdk import Session as Session


def __getattr__(name: str) -> object:
    # Not imported at once: the command line's fast path loads this package and has no use for the SDK.
    if name in ("Client", "Session"):
        from waypoint.client import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
