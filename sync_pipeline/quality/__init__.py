"""Whether what is stored is complete, fresh and true to its source, and the reasons when it is not."""
