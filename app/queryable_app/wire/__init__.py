"""Encode and decode what crosses a process or a disk: keys, values, rows, frames, cursors, HTTP text, JSON.

Pure. Any room above may import it; it imports `config`, `errors` and `contract` only.
"""
