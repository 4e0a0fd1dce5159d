"""The only place with SQL: facts, ledger, watermarks, leases, quarantine, migrations. Knows no source."""
