"""Tests of the service functions, without a daemon."""
