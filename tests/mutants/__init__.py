"""Mutants: small faults put into the product, which the tests that each mutant names must find.

A mutant is a patch whose header states a promise of the product in one sentence. The patch breaks
that promise, so the named tests must fail with it, and pass without it.
"""
