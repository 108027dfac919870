"""The node's HTTP routes, on FastAPI. Who may enter: `serve`, which serves the app, and tests.

A route says what it takes and hands over to `reads`, `scans` or the node; what a request may be is decided in
`request`, what it may cost in `guard`, and every failure becomes a problem there.
"""
