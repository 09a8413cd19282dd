"""The names of the extended attributes that overlayfs and Waypoint set in upper trees.

Only root may set attributes `trusted.*`. Without root, overlays are mounted with `userxattr` and the names begin with
`user.` (kernel Documentation/filesystems/overlayfs.rst).
"""

from waypoint.linux.calls import abilities

_PREFIX = abilities.own().marks
OPAQUE = f"{_PREFIX}overlay.opaque"
REDIRECT = f"{_PREFIX}overlay.redirect"
ORIGIN = f"{_PREFIX}overlay.origin"
FORMER = f"{_PREFIX}waypoint.former"
SEALED = f"{_PREFIX}waypoint.sealed"
SIZE = f"{_PREFIX}waypoint.size"
OF_OVERLAYS = ("trusted.overlay.", "user.overlay.")
OF_WAYPOINT = ("trusted.waypoint.", "user.waypoint.")
