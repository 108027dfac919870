"""One machine: a broker, nodes and topics as child processes, for development, demos and tests.

Only `cli` and tests enter. Nothing in a cluster does: there, Kafka is the user's and the operator starts the nodes.
"""
