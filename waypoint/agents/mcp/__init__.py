"""The MCP server: the tools and resources through which an agent uses sessions (docs/agents.md)."""
