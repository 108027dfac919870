"""Measure the progress of each revision from the observed objects, and decide the next step of a rollout.

Pure. `report` and `decide` import it.
"""
