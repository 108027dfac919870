"""Make the writer's jar and the class archive for an image: `python -m queryable_app.ingest.prepare`.

The archive holds the jars' times to the nanosecond, and an image keeps whole seconds. Jars with a fraction of a second are
refused, because the JVM would ignore the archive silently.
"""

from __future__ import annotations

import os
import sys

from queryable_app.ingest.jvm import class_path
from queryable_app.ingest.training import make_archive
from queryable_app.ingest.writer_jar import writer_jar
from queryable_app.platform.jars import JarsError, cache_dir, ingest_jars

_SECOND_NS = 1_000_000_000


def main() -> int:
    cache = cache_dir(os.environ.get("QT_CACHE_DIR", ""))
    try:
        writer = writer_jar(cache, ingest_jars(cache))
        written_ns = writer.stat().st_mtime_ns // _SECOND_NS * _SECOND_NS
        os.utime(writer, ns=(written_ns, written_ns))
        jars = class_path(cache)
    except JarsError as error:
        print(error, file=sys.stderr)
        return 1
    for jar in jars:
        if jar.stat().st_mtime_ns % _SECOND_NS:
            print(
                f"{jar} has a time with a fraction of a second, which an image does not keep", file=sys.stderr
            )
            return 1
    return 0 if make_archive(cache, jars) else 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the JVM has ended: PySpark need not disconnect
