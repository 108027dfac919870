"""Own a node's data and its port, in one process with one event loop.

Entered by `python -m queryable_app.serve` and by tests; no other room imports it. `store` alone uses RocksDB, `kafka` alone
talks to Kafka, `feed` alone talks to ingest, `peers` calls other nodes, and `http` and `api` answer requests. Work that
would block the event loop is cut into slices.
"""
