"""What Waypoint offers to agents, beside its command line: the text that they read."""
