"""Tests of the whole product as its users see it: terminals, commands, settings, mistakes, permissions."""
