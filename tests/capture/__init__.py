"""Tests of the room that owns captures, without sessions."""
