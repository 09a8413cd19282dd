"""Tests of what agents use."""
