"""The parameters that several tools share."""

from typing import Annotated

from msgspec import Meta

from waypoint.agents.mcp.outputs import DEFAULT_BYTES, MOST_BYTES

Branch = Annotated[str, Meta(description="The branch on which the session runs.")]
Name = Annotated[str, Meta(description="A checkpoint, a branch, or the id of a capture.")]
New = Annotated[str, Meta(description="The new name, such as fix-1 or try/fix-1.")]
Path = Annotated[str, Meta(description="An absolute path in the session.")]
Paths = Annotated[list[str], Meta(description="Only files at or below these absolute paths in the session.")]
Timeout = Annotated[
    float, Meta(gt=0, le=1e6, description="Seconds after which the command is stopped; `exit` is 124 then.")
]
Cwd = Annotated[str, Meta(description="The folder for this command only.")]
Env = Annotated[dict[str, str], Meta(description="Variables for this command only.")]
Stdin = Annotated[str, Meta(description="The command's input. Default: none.")]
MaxBytes = Annotated[
    int,
    Meta(
        ge=256,
        le=MOST_BYTES,
        description=f"The most bytes of output in the result, by default {DEFAULT_BYTES}. `output` reads on.",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=1000, description="The most items in the result.")]
Offset = Annotated[
    int, Meta(ge=0, le=1 << 53, description="How many items to leave out: `next_offset` of the page before.")
]
