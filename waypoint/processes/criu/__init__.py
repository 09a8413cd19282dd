"""CRIU: its RPC, dump and restore, its image files, and the meanings of its error messages."""
