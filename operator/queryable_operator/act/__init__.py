"""Adapt the outside: watch, look, apply. Kubernetes, Kafka, query nodes, kopf, the operator's own HTTP port.

The highest room: only `__main__` imports it.
"""
