"""Looking at the files of sessions and captures as these see them, from outside."""
