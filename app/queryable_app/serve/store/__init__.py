"""Keep replicas on disk: one RocksDB for each, its state, its sweeper, and the guard of the disk.

Imported by every room of a node but `serve.base`.
"""
