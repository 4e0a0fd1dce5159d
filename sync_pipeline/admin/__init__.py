"""Actions of a person on the installation: jobs, pauses, limits, quarantine, retention, verification."""
