"""Waypoint: a terminal whose whole state can be checkpointed, restored and branched."""

__version__ = "0.1.0"
