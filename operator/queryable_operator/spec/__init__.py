"""Parse a QueryableTopic and the observed facts into frozen values, and name what belongs to it.

Pure, and the lowest room of the operator.
"""
