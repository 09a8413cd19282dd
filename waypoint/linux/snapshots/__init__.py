"""btrfs: subvolumes and their snapshots, what differs between two, and how much each may take."""
