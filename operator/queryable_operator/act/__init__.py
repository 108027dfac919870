"""Adapt the outside: the Kubernetes API, Kafka, query nodes, kopf and the operator's own HTTP port.

The highest room: only `__main__` imports it.
"""
