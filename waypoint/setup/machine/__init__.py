"""What setup puts on the machine outside of the home: completion of shells, a unit of systemd."""
