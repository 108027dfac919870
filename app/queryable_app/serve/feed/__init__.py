"""Take records from ingest: the control socket, the row socket, slices, dead letters, the watchdog.

Imported by `serve.node` and the rooms above.
"""
