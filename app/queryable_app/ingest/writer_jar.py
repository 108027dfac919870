"""Compile the row writer's Java once into the cache, as a jar for Spark's class path.

Strategy: pyspark ships Janino, a Java compiler in a jar, and Janino has a command line: neither a JDK nor a binary in the
repository is needed. The jar's name holds a digest of the sources and of Spark's version, so that an outdated jar is never used.
It is the first of the class path, and a jar because class data sharing supports no directories.

The jar also has Janino's own classes, which Spark needs for every query. They are signed: class data sharing
supports no signed classes, and the JVM verifies each signed class that it loads. And it has the files of
`small_resources`.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from queryable_app.ingest.small_resources import REBASED, small_resources
from queryable_app.platform.jars import JarsError, find_java, locked, pyspark_jars

_COMPILE_SECONDS_MAX: Final = 120
REPACKED: Final = ("janino-", "commons-compiler-")
"""The prefixes of pyspark's jars whose classes are repacked into the writer's jar."""

_SERVICES: Final = {"org.apache.spark.scheduler.ExternalClusterManager": "io.queryabletopics.RekeyCluster"}
"""The classes that the JVM finds by the interface that they implement."""

_FIXED_TIME: Final = (2020, 1, 1, 0, 0, 0)  # equal classes make an equal jar


def writer_jar(cache: Path, connector: Sequence[Path]) -> Path:
    """Return the jar. `connector` has the Kafka client, which the rekey job's classes use."""
    sources = {
        source.name: source.read_bytes()
        for source in resources.files("queryable_app.ingest").joinpath("writer").iterdir()
        if source.name.endswith(".java")
    }
    # The names of Spark's jars have its version. Python's record of what is installed takes longer to read.
    digest = hashlib.sha256(repr(sorted(jar.name for jar in pyspark_jars().glob("*.jar"))).encode())
    digest.update(repr((REPACKED, _SERVICES)).encode())
    digest.update(resources.files("queryable_app.ingest").joinpath("small_resources.py").read_bytes())
    for name in sorted(sources):
        digest.update(name.encode() + sources[name])
    jar = cache / f"row-writer-{digest.hexdigest()[:16]}.jar"
    if not jar.exists():
        with locked(cache, "row-writer"), tempfile.TemporaryDirectory(dir=cache) as scratch:
            if not jar.exists():  # another process may have compiled it meanwhile
                _compile(sources, Path(scratch), connector).rename(jar)
    return jar


def _compile(sources: dict[str, bytes], scratch: Path, connector: Sequence[Path]) -> Path:
    written = []
    for name, text in sources.items():
        written.append(scratch / name)
        written[-1].write_bytes(text)
    libraries = pyspark_jars()
    janino = [jar for jar in sorted(libraries.glob("*.jar")) if jar.name.startswith(REPACKED)]
    classes = scratch / "classes"
    classes.mkdir()
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", _class_path(janino)]
    command += ["org.codehaus.commons.compiler.samples.CompilerDemo", "-g", "-encoding", "UTF-8"]
    command += ["-d", str(classes), "-classpath", _class_path([*connector, *sorted(libraries.glob("*.jar"))])]
    command += [str(path) for path in written]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS_MAX)
    except subprocess.TimeoutExpired as error:
        raise JarsError("The row writer did not compile in time; is the machine very busy?") from error
    # This compiler's exit code is 0 whatever happens.
    if not all(list(classes.rglob(name.replace(".java", ".class"))) for name in sources):
        raise JarsError(f"The row writer does not compile: {(done.stdout + done.stderr).strip()}")
    jar = scratch / "row-writer.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(classes)), _FIXED_TIME), path.read_bytes())
        for interface, implementation in _SERVICES.items():
            archive.writestr(zipfile.ZipInfo(f"META-INF/services/{interface}", _FIXED_TIME), implementation)
        for name, content in small_resources(rebased_files(libraries)).items():
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIME), content)
        for signed in janino:
            _repack(signed, archive)
    return jar


def rebased_files(libraries: Path) -> dict[str, bytes]:
    """Return Spark's own files of old calendars."""
    (owner,) = libraries.glob("spark-sql-api_*.jar")
    with zipfile.ZipFile(owner) as jar:
        return {name: jar.read(name) for name in REBASED}


def _repack(signed: Path, into: zipfile.ZipFile) -> None:
    with zipfile.ZipFile(signed) as jar:
        for name in sorted(jar.namelist()):
            if not name.endswith("/") and not name.startswith("META-INF/"):  # the signature is there
                into.writestr(zipfile.ZipInfo(name, _FIXED_TIME), jar.read(name))


def _class_path(jars: Sequence[Path]) -> str:
    return ":".join(map(str, jars))
