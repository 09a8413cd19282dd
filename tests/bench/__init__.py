"""The benchmark: prints figures beside their floors, the least that any program could take. It is not a test, because a
busy machine must not fail a test.
"""
