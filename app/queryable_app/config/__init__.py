"""Parse the resource's `spec` and the settings of Kafka clients into frozen values.

Pure, and the lowest room: every other room and the operator may import it.
"""
