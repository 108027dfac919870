"""The query node: a topic's records in, a key's newest value out.

Files directly in this package think: frozen values in, values out, nothing but the standard library and one
another. What acts on the world lives in a room of its own, named after its role: `serve` owns RocksDB and the HTTP
port, `ingest` owns Spark, `local` owns processes on one machine, `client` owns outgoing HTTP, `commands` owns the
terminal. The exceptions are `jars` (owns the cache of JVM libraries), `kafka_clients` (owns certificates), `log`
(owns standard error), `descriptors` (owns the process' limit of open files), `listeners` (owns listening sockets) and
`cli`, the way in.
"""
