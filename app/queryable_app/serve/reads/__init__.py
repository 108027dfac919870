"""Read keys, ranges and counts from this node's replicas and from its peers.

Imported by `serve.api` and `serve.http`.
"""
