"""Tests of waypoint/processes: finding, installing and calling CRIU, and explaining what it refuses."""
