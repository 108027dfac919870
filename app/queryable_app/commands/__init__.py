"""The commands of `qtopic`, one file each.

Only `cli` and tests enter. A command reads its options, lets another room do the work, and turns what came of it into
lines and an exit code.
"""
