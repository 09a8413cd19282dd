"""The verbs that are not on the fast path. Each function returns the exit status and raises WaypointError, OSError."""
