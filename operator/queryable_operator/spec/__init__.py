"""Parse a QueryableTopic into frozen values, name what belongs to it, and type what is observed of it.

Pure, and the lowest room of the operator: every other one may import it.
"""
