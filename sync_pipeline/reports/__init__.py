"""Reports for people and machines: status, health, completeness, doctor, runs, plans."""
