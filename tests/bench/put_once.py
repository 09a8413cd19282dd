"""One folder into a store, as a program: `python -I -S put_once.py STORE FOLDER ROOT [EARLIER BEFORE]`.

`FOLDER`: a sealed subvolume. `ROOT`: a file, which gets the digest of the folder's ROOT when the image survives a
power loss. `EARLIER`: the digest that it had for the subvolume at `BEFORE`, of which the other is a later snapshot.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from waypoint.model.packages import make_importable


def main(path: str, folder: str, result: str, earlier: str = "", before: str = "") -> None:
    from waypoint.linux.snapshots.btrfs_send import differences
    from waypoint.linux.storage.descriptors import open_folder
    from waypoint.store.content.image_files import ImageFile
    from waypoint.store.content.opened import open_store
    from waypoint.store.trees.gathering import gather
    from waypoint.store.trees.updating import update

    store = open_store(path)
    with store.writing("bench") as writer, open_folder(folder) as fd:
        if earlier:
            root = update(writer, fd, bytes.fromhex(earlier), differences(before, folder))
        else:
            root = gather(writer, fd)
        writer.commit()
        store.images.add(ImageFile(os.urandom(8), b""))
    with open(result, "w") as file:
        file.write(root.hex())


if __name__ == "__main__":
    make_importable("msgspec", "blake3", "zstandard", "pyfastcdc")
    main(*sys.argv[1:])
