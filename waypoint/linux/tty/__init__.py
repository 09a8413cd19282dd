"""Terminals and pseudo-terminals."""
