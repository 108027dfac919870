"""Run a broker, nodes and topics on one machine, as child processes, for development, demos and tests.

Only `commands` and tests import it. Nothing in a cluster does: there, Kafka is the user's, and the operator starts the nodes.
"""
