"""The command line. A command makes a client call and prints the answer. Only this package reads the environment and
the terminal, and ends the process.
"""
