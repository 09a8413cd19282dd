"""Tests of the thin functions over the kernel."""
