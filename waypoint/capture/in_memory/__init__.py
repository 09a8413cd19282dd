"""Images of processes that are born in memory, and come to the disk when their session has gone on."""
