"""`waypoint` commands that run inside a session: how they reach the daemon."""
