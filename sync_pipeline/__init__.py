"""A complete, provable copy of source-control activity in PostgreSQL. See README.md and docs/."""

__version__ = "0.9.0"
