"""Tests of waypoint/store/content."""
