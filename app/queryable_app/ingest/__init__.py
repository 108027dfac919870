"""The one room that knows Spark. It asks serve where to start, streams from exactly there, and keeps nothing.

Nobody enters but `queryable_app.ingest.__main__`'s process; the rest of the package talks to it over two sockets.
The exceptions import it, not Spark's processes: `transform` is asked by whoever wants a view's SQL checked.
"""
