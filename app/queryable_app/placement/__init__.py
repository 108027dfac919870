"""Decide which node hosts which replica: the placement, the target it moves towards, and its next step.

Pure. The nodes, `qtopic run` and the operator import it.
"""
