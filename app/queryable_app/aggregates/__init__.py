"""Fold records into aggregates (pure): functions, states, windows of event time."""
