"""Putting what a branch has changed onto the machine, and taking that back."""
