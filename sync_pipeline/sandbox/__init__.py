"""Sample sources that run anywhere: for the demo, the benchmarks and the tests. Nothing here is imported by
the product itself."""
