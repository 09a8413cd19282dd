"""Attaching files and folders to captures: packing, sending, getting back."""
