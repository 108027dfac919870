"""Stream a topic's records through Spark into serve.

Ingest gets its start positions from serve, streams from exactly there, and keeps no state. It is the only room that imports
pyspark. No other room imports it: the package starts `queryable_app.ingest` and `queryable_app.ingest.check` as processes
and talks to them over two sockets.
"""
