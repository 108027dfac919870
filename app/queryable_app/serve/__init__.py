"""The process that owns the data and the port.

Who may enter: `python -m queryable_app.serve`, and tests. Nothing outside imports from here. `store` alone knows
RocksDB, `end_offsets` and `producer` alone talk to Kafka, `row_socket` and `control_socket` alone hear ingest; HTTP lives in
`api`, `fast_lane` and `reads`. One event loop runs it all; what would block it is cut into slices.
"""
