"""Share what every room of a node needs: background tasks, admission, memory budgets, frames between peers.

The lowest room of a node.
"""
