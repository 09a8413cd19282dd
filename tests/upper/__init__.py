"""Tests of waypoint/upper: pools of trees (upper folders of overlays), on small real file systems."""
