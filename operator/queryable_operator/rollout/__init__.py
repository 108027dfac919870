"""Read the observed objects of a resource: where each revision stands, and its next step.

Pure. `report` and `decide` import it.
"""
