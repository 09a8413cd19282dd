"""Tests of waypoint/store/exports."""
