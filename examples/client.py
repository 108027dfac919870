"""Read a view from Python. Start `make demo`, then `.venv/bin/python examples/client.py`."""

import sys

from queryable_app.client import QueryableTopic, QueryableTopicError

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"

with QueryableTopic(url, deadline_ms=5000) as view:
    try:
        print(f"about {view.count(approximate=True)} keys")
        rows = list(view.scan(limit=3))
        for row in rows:
            print(f"{row.key!r} is {row.value!r}, from partition {row.partition} of {row.served_by}")

        again = view.multi_get([*(row.key for row in rows), "nobody"])
        print([row is not None for row in again])
    except QueryableTopicError as failure:
        sys.exit(str(failure))
