"""Tests of waypoint/store/packs."""
