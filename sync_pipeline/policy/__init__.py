"""Decisions as pure functions: when, how much, how long to wait. No I/O and no clock of their own."""
