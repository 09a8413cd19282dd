"""Commands that a session's own processes ask for: the FIFOs in its /run/waypoint, and what may be asked."""
