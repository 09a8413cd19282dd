"""Transactions that join files and processes into captures."""
