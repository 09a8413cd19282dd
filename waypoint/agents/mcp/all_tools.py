"""All tools, in the order in which clients see them."""

from waypoint.agents.mcp import attempts, commands, finding, tools
from waypoint.agents.mcp.toolbox import TOOLS as FOUND

MODULES = (tools, commands, attempts, finding)
ORDER = (
    *("start", "exec", "run", "output", "read_file", "write_file", "checkpoint", "list", "log", "search", "diff"),
    *("apply", "fork", "try", "restore", "undo", "rewind", "handoff", "adopt", "stop", "verify"),
)
TOOLS = {name: FOUND[name] for name in ORDER}
