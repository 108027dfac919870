"""Compute aggregates: the functions, the states of groups, windows of event time, and the JSON of
results.

Pure. Any room above may import it; it imports `wire`, `config`, `errors` and `contract` only.
"""
