"""Tests of waypoint/store/trees."""
