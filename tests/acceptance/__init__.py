"""The product as its users meet it: terminals, commands, settings, mistakes, permissions."""
