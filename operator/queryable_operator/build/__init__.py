"""Build the Kubernetes objects of a revision.

Pure: a resource in, objects out. `rollout`, `decide` and `act` import it.
"""
