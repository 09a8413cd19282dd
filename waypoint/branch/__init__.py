"""Operations on names and on the graph of captures: renaming, removing, walking back, undoing."""
