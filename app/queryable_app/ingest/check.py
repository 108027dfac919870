"""Check the view's SQL and schema with Spark before a node starts: `python -m queryable_app.ingest.check`.

It is configured like a node. Exit code 0: Spark accepts both. 2: Spark refuses one, and standard error has Spark's message.
1: the check itself failed. The format of group keys is left in a file of `run_dir`, where the view has such keys.
With `--describe`, standard output has what Spark found, as JSON. With `--report FILE`, the file has the format of group keys or
the refusal, as JSON for the operator (`wire/check_report.py`). If that format is set already, an earlier check has accepted the
view, and Spark is not started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from queryable_app.config.topic_spec import SpecError
from queryable_app.contract import GROUP_KEY_FORMAT_FILE, NodeSettings, SettingsError
from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.gateway import jvm_process
from queryable_app.ingest.launch import FIRST_COMPILER_ONLY, Profile
from queryable_app.ingest.session import start_session
from queryable_app.ingest.stream import view_of
from queryable_app.ingest.transform import Projection, check_view
from queryable_app.platform.jars import JarsError, cache_dir
from queryable_app.platform.mounted_files import read_spec
from queryable_app.wire.check_report import accepted, refused
from queryable_app.wire.ingest_failures import IngestFailure


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = _options().parse_args()
    try:
        settings = NodeSettings.from_env()
        if options.report and settings.group_key_format:
            options.report.write_text(accepted(settings.group_key_format))
            return 0
        spec = read_spec(settings)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            profile = Profile(
                1,
                spec.ingest.driver_memory,
                Path(scratch),
                cache_dir(settings.cache_dir),
                options=(FIRST_COMPILER_ONLY,),
            )
            with _muted_stderr():
                session = start_session(profile)
            try:
                checked = check_view(session, view_of(spec))
                if checked.group_key_format:
                    Path(settings.run_dir, GROUP_KEY_FORMAT_FILE).write_text(checked.group_key_format)
                if options.report:
                    options.report.write_text(accepted(checked.group_key_format))
                if options.describe:
                    print(json.dumps(described(checked)), flush=True)
            finally:
                jvm_process().kill()
    except SqlError as error:
        print(error, file=sys.stderr, flush=True)
        if options.report:
            options.report.write_text(refused(IngestFailure(error.reason, str(error))))
        return 2
    except (SettingsError, SpecError, JarsError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m queryable_app.ingest.check")
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--report", type=Path)
    return parser


def described(projection: Projection) -> dict[str, Any]:
    """Return what Spark's analysis found, for `qtopic explain`."""
    return {
        "columns": [{"name": name, "type": type_} for name, type_ in projection.columns],
        "inputs": [
            {"of": each.input.of, "filter": each.input.filter, "type": each.type, "sqlType": each.sql_type}
            for each in projection.inputs
        ],
        "groupKeyFormat": projection.group_key_format,
        "readsHeaders": projection.reads_headers,
    }


@contextmanager
def _muted_stderr() -> Iterator[None]:
    """Discard the JVM's start-up messages, which would stand before the one sentence that matters."""
    own = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the JVM has ended: PySpark need not disconnect
