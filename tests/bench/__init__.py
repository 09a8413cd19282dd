"""The benchmark: a program that prints figures beside their floors. Never a test: a busy machine must not fail one."""
