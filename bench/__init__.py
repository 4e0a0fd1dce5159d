"""Side-by-side benchmarks: every figure is a ratio of two things measured in one run on one machine.

Belongs here: what design budgets promise, shown and not asserted. Nothing of the product imports it.
"""
