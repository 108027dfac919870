"""Talk to the other nodes: heartbeats, address health, forwarded reads.

Imported by `serve.replication`, `serve.node`, `serve.reads` and the rooms above.
"""
