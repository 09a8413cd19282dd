"""What agents use of Waypoint: the MCP server."""
