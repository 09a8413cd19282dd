"""How the processes of a session come to life: in a small process of one thread, told by plans."""
