"""Tests of the way out of private networks, without one."""
