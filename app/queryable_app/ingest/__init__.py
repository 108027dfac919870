"""The one room that knows Spark. It asks serve where to start, streams from exactly there, and keeps nothing.

Nobody imports it: the rest of the package starts `queryable_app.ingest` or `queryable_app.ingest.check` as a process
and speaks with it over two sockets.
"""
