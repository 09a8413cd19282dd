"""Tests of waypoint/upper/comparing."""
