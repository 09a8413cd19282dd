"""What must outlive everything: branches, captures and operations, in one SQLite file."""
