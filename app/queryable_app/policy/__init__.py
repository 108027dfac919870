"""Decide: routing, attempts and hedges, failure detection, freshness, overload, retries, bounds.

Pure. The adapters of `serve` and `client` import it and carry out what it decides.
"""
