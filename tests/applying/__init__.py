"""Tests of putting a branch's changes onto the machine. Each has a machine of its own: a folder below the test's."""
