"""Random operations under random kills: what was acknowledged is there, and no state disagrees with itself."""
