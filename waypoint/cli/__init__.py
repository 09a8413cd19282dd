"""Commands: parse, one client call, render. Environment, terminal and sys.exit only here."""
