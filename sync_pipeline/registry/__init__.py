"""Takes repositories into the catalog: registration, discovery, costs, relocation."""
