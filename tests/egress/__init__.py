"""Tests of outbound networks that need no network."""
