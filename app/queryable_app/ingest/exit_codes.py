"""End a process of ingest, or of the rekey job, with the exit code of what ends its work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NoReturn

from queryable_app.ingest.control import Superseded
from queryable_app.ingest.launch import DescriptorsTooFew
from queryable_app.ingest.process import IngestProcess
from queryable_app.ingest.supervisor import first_line
from queryable_app.ingest.writer_check import WriterBroken
from queryable_app.platform.jars import JarsError

SUPERSEDED: Final = 4
"""The exit code when serve has taken a newer ingest. Started again, this one would be the newest."""

_JVM_EXIT_SECONDS: Final = 2.0


def run(process: IngestProcess, work: Callable[[], NoReturn]) -> NoReturn:
    """Do the work until it fails, and end the process with the failure's exit code."""
    try:
        work()
    except (JarsError, WriterBroken, DescriptorsTooFew) as error:
        process.end(1, "failed", reason=str(error))
    except Superseded as error:
        process.end(SUPERSEDED, "superseded", reason=str(error))
    except Exception as error:
        threading.Event().wait(_JVM_EXIT_SECONDS)  # if the JVM has died, its watcher reports that instead
        process.end(1, "failed", reason=first_line(error))
