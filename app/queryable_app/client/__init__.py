"""Asks nodes over HTTP, from outside.

Anyone may enter; nothing here imports another room.
"""
