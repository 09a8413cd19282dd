"""Tests of waypoint/capture without real sessions."""
