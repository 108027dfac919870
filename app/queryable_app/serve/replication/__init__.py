"""Follow the placement: assign and release replicas, hydrate them from peers, serve checkpoints.

Imported by `serve.node` and the rooms above.
"""
