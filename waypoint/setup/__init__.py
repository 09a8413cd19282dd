"""Making a machine ready and taking Waypoint away again: the home, a CRIU that works, the trials of `doctor`."""
