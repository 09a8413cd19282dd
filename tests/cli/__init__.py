"""The command line as a subprocess and on ptys."""
