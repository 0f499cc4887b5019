"""Mutants: small faults put into the product, which the tests that each mutant names must find.

A mutant is a row of an area's table. It states a promise of the product in one sentence, and an
edit that breaks it: the named tests must fail with the edit, and pass without it.
"""
