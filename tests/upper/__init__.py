"""Pools of upper trees, on real small file systems."""
