"""Names, ids, records and errors. Pure: no I/O, no clock, no environment."""
