"""Folders in the store: as trees of entries, from a folder on disk and back to one (docs/format.md)."""
