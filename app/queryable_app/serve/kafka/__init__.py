"""Talk to Kafka for a node: end offsets, gaps, committed group positions, produced records.

Imported by `serve.node` and the rooms above.
"""
