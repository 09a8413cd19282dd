"""Tests of waypoint/model."""
