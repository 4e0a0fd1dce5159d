"""Jobs, leases, watermarks and everything else that is recorded about the work. The facts are not here."""
