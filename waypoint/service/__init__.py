"""The functions behind every request to the daemon, without HTTP."""
