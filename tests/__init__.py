"""Tests of Waypoint, and what they share. A package, so that no installed package of this name can shadow it."""
