"""Tests of waypoint/store."""
