"""Captures in the store: how one becomes an image."""
