"""What kinds of programs need so that CRIU can dump them: one TOML file each. Data only; README.md has the schema."""
