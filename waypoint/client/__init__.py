"""The SDK over the control socket: `from waypoint.client import Client`. It uses the standard library only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.client.sdk import Client as Client
    from waypoint.client.sdk import Session as Session


def __getattr__(name: str) -> object:
    # Imported on demand: the fast path loads this package, but does not use the SDK.
    if name in ("Client", "Session"):
        from waypoint.client import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
