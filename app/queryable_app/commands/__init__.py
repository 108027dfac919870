"""The commands of `qtopic`.

Only `cli` and tests import it. A command parses its options, calls another room, and turns the result into lines and an exit
code.
"""
