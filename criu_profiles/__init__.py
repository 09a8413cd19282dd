"""Workload profiles: settings that let CRIU dump a kind of program, one TOML file each. README.md has the schema."""
