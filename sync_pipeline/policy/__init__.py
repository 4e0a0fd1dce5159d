"""Decisions as pure functions: when, how much, and how long to wait. They do no I/O and read no clock."""
