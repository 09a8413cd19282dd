"""The daemon's side of `waypoint` commands that run inside a session: their requests and the answers."""
