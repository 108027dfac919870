"""Keep replicas on disk: one RocksDB for each, its state, its sweeper, and the disk guard.

Imported by every room of a node but `serve.base`.
"""
