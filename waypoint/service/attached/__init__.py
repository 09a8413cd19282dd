"""Attached layers: files and folders that belong to a capture, besides what its session was."""
