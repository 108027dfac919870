"""`qtopic`: what a person types."""

from __future__ import annotations

import signal


def main() -> None:
    """The commands take a while to be imported; Ctrl-C ends that as it ends any program, without a traceback."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from queryable_app.commands.group import qtopic

    signal.signal(signal.SIGINT, handler)
    qtopic()


if __name__ == "__main__":
    main()
