"""Authenticate callers: the keys that tokens are verified with, the verified tokens, and the audit log.

Imported by `node` and the rooms above it.
"""
