"""`python -m queryable_app.ingest.prepare`: what ingest makes at its first start, for an image in which it cannot be made.

The archive holds the jars' times to the nanosecond and an image keeps whole seconds, so that jars with other times are
refused: nobody would notice that the archive is not taken but by the clock.
"""

from __future__ import annotations

import os
import sys

from queryable_app.ingest.class_archive import archive_options
from queryable_app.ingest.writer_jar import writer_jar
from queryable_app.jars import JarsError, cache_dir, connector_jars, pyspark_jars

_SECOND_NS = 1_000_000_000


def main() -> int:
    cache = cache_dir(os.environ.get("QT_CACHE_DIR", ""))
    try:
        writer = writer_jar(cache)
        written_ns = writer.stat().st_mtime_ns // _SECOND_NS * _SECOND_NS
        os.utime(writer, ns=(written_ns, written_ns))
        class_path = [writer, *connector_jars(cache)]
    except JarsError as error:
        print(error, file=sys.stderr)
        return 1
    for jar in (*class_path, *pyspark_jars().glob("*.jar")):
        if jar.stat().st_mtime_ns % _SECOND_NS:
            print(
                f"{jar} has a time with a fraction of a second, which an image does not keep", file=sys.stderr
            )
            return 1
    return 0 if archive_options(cache, class_path) else 1


if __name__ == "__main__":
    sys.exit(main())
