"""Sample sources for the demo, the benchmarks and the tests. They run anywhere, and the product does not
import them.
"""
