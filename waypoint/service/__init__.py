"""What can be asked of Waypoint, in one vocabulary, without HTTP."""
