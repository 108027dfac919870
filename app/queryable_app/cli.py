"""Start `qtopic`, the command line."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command. Ctrl-C during its imports, which take a while, ends the process without a traceback."""
    # httpx would import its own command line, and with it pygments, which takes longer than a read.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from queryable_app.platform.collector import long_lived
    from queryable_app.platform.core_dumps import forbid_core_dumps

    forbid_core_dumps()
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    with long_lived():
        from queryable_app.commands.group import qtopic

    signal.signal(signal.SIGINT, handler)
    qtopic()


if __name__ == "__main__":
    main()
