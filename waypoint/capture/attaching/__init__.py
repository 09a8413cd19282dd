"""Attaching files and folders to captures, and bringing them back: what moves bytes is a program of its own."""
