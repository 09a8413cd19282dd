"""Setting up Waypoint on a machine and removing it: the home, a CRIU that works, the trials of `waypoint doctor`."""
