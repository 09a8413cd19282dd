"""The content-addressed store: objects in packs, an index that can be rebuilt, folders as trees, images, upkeep."""
