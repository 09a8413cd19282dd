"""Packs: files of many objects each, and the index that finds an object in them (docs/format.md)."""
