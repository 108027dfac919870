"""Serve the newest value of each key of a Kafka topic.

Each room says in its `__init__` what it is for and who may import it. The pure rooms (`wire`, `config`, `placement`, `policy`)
take and return frozen values. The other rooms are adapters: `serve` owns RocksDB and the HTTP port, `ingest` owns Spark, `local`
owns processes on one machine, `client` owns outgoing HTTP, `commands` owns the terminal, and `platform` owns the machine's own
interfaces. `contract` and `errors` are pure, and every room imports them.
"""
