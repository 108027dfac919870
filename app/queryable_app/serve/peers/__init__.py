"""Send heartbeats, forwarded reads and other requests to the other nodes, and track their health.

Imported by `serve.replication`, `serve.node`, `serve.reads` and the rooms above.
"""
