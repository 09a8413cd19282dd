"""Exports: one image with its history as one file, which any store takes in."""
