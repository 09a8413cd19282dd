"""Drivers of the upper directory, behind one contract."""
