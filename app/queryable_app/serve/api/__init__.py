"""Answer HTTP requests that take a task: the FastAPI routes, the pages, status and metrics.

Imported by `serve.http` and the process's entry point.
"""
