"""What a session must not reach of the machine, and what must work in it nevertheless: two tables, tried."""
