"""The next steps about the machine (disks, mounts, CRIU, another version of Waypoint)."""

ON_THE_MACHINE = frozenset(
    {
        "if it is of another version: waypoint daemon stop, and try again",
        "mend that, and run it again",
        "put the home on ext4, XFS or btrfs",
        "run `waypoint setup`, which installs a private one",
        "run it again; if it ends so again, please report its messages above",
        "see 'waypoint doctor'",
        "see the kernel's log (dmesg) and 'ls -la {}'",
        "see the kernel's log (dmesg): the disk has failed; copy the home to another disk before anything else",
        "see the kernel's log (dmesg): the file system is read-only; make it writable",
        "set WAYPOINT_CRIU to a CRIU of at least version 4.2 that you have installed",
        "set WAYPOINT_CRIU to a CRIU that works here, or unset it; then `waypoint daemon stop`",
        "umount {}",
        "use the version of Waypoint that made it",
    }
)
"""Steps that test_next_machine.py follows."""
