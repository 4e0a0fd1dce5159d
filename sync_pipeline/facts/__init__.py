"""The fact tables: one column list each, upsert, comparison, re-mapping, quarantine and tombstones."""
