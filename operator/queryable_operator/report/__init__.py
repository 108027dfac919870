"""Write the resource's status: conditions, messages, progress.

Pure. `decide` imports it.
"""
