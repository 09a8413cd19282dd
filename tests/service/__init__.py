"""Tests of what can be asked of Waypoint, without a daemon."""
