"""Decide the actions of one reconcile pass from the observed facts.

Pure: `plan` is the one entry. `act` imports it.
"""
