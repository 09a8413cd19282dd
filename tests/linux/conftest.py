"""Fixtures of the tests that touch the kernel."""

from tests.corner import corner as corner
