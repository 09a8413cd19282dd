"""The records that must outlive every process: branches, captures and operations, in one SQLite file."""
