"""Writing what an upper directory has to the folder that it was over."""
