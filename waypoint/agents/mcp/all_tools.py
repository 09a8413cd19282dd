"""All tools, in the order in which clients see them."""

from waypoint.agents.mcp import attempts, commands, finding, missing, tools
from waypoint.agents.mcp.toolbox import TOOLS as FOUND

MODULES = (tools, commands, attempts, finding, missing)
ORDER = (
    *("start", "exec", "run", "output", "read_file", "write_file", "checkpoint", "list", "log", "search", "diff"),
    *("apply", "fork", "try", "restore", "undo", "rewind", "handoff", "adopt", "stop", "verify"),
)
TOOLS = {name: FOUND[name] for name in ORDER}
