"""The engine: window, chunks, batches, one transaction each. Knows sources and store, not Dagster."""
