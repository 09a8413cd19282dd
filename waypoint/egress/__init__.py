"""Connects sessions with a private network to the outside, by one router for each home (Waypoint's data folder)."""
