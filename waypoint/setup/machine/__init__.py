"""The files of `waypoint setup` outside of the home: completion for shells, and a systemd unit."""
