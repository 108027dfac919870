"""Find Java, and fetch the JVM libraries that no Python package brings. All Maven coordinates are in this file.

Strategy: pyspark ships Ivy, and Ivy has a command line, so Java and the wheel suffice: no Maven, no Docker. Resolved jars stay in
the cache under their version. A lock keeps parallel callers from resolving them twice, and a rename publishes them whole or not
at all. Spark's connector is four named jars without their dependencies, because pyspark has the rest. Downloads are compared with
`platform/jars.sha256` before use: a mirror, a proxy or an attacker cannot exchange a jar.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queryable_app.platform.file_lock import file_lock

JAVA_MIN: Final = 17
IVY_SETTINGS_VARIABLE: Final = "QT_IVY_SETTINGS"
_RESOLVE_SECONDS_MAX: Final = 900
DIGESTS_FILE: Final = Path(__file__).with_name("jars.sha256")
"""The output of `sha256sum` for paths below the cache. `make digests` rewrites it after a change of versions."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    organisation: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class JarSet:
    """Name jars that are resolved together, into one directory."""

    directory: str
    what: str
    jars: tuple[Jar, ...]
    transitive: bool


# The connector of the Spark that pyproject.toml pins. Its token provider, for Kerberos delegation tokens, was not published in
# that version; Spark loads it and does not use it.
_CONNECTOR: Final = JarSet(
    "spark-kafka-4.2.0",
    "Spark's Kafka connector (10 MB)",
    (
        Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
        Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
        Jar("org.apache.kafka", "kafka-clients", "3.9.2"),
        Jar("org.apache.commons", "commons-pool2", "2.13.1"),
    ),
    transitive=False,
)

# What reads values that have a schema. Wire parses .proto text; it names two libraries more, which write Java and Kotlin. The
# validator of JSON Schema is of the line that uses Jackson 2, which pyspark has; it reads dates with itu.
_FORMATS: Final = JarSet(
    "value-formats-2",
    "the libraries of values that have a schema (6 MB)",
    (
        Jar("com.google.protobuf", "protobuf-java", "4.33.1"),
        Jar("com.squareup.wire", "wire-schema-jvm", "7.1.2"),
        Jar("com.squareup.wire", "wire-runtime-jvm", "7.1.2"),
        Jar("com.squareup.okio", "okio-jvm", "3.18.2"),
        Jar("org.jetbrains.kotlin", "kotlin-stdlib", "2.0.21"),
        Jar("com.networknt", "json-schema-validator", "2.0.8"),
        Jar("com.ethlo.time", "itu", "1.14.0"),
    ),
    transitive=False,
)

_BROKER: Final = JarSet(
    "kafka-4.3.1",
    "Apache Kafka (44 MB)",
    (
        Jar("org.apache.kafka", "kafka_2.13", "4.3.1"),
        Jar("org.slf4j", "slf4j-simple", "1.7.36"),  # without a binding the broker does not log that it is up
    ),
    transitive=True,
)


SETS: Final = (_CONNECTOR, _FORMATS, _BROKER)


class JarsError(Exception):
    """Report that Java or a library is missing; the message is one sentence that says what to do."""


class JavaMissing(JarsError):
    """Report that there is no usable Java. None is downloaded."""


def cache_dir(setting: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of downloads and class archives: the setting, or the user's cache directory."""
    if setting:
        return Path(setting)
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "queryable-topics"


def connector_jars(cache: Path, progress: Progress | None = None) -> list[Path]:
    """Return the four jars with which Spark reads Kafka."""
    return sorted(resolved(_CONNECTOR, cache, progress or _print_progress).glob("*.jar"))


def ingest_jars(cache: Path, progress: Progress | None = None) -> list[Path]:
    """Return all jars of ingest that pyspark does not have: Spark's connector, and the libraries of formats."""
    formats = resolved(_FORMATS, cache, progress or _print_progress).glob("*.jar")
    return [*connector_jars(cache, progress), *sorted(formats)]


def broker_jars(cache: Path, progress: Progress | None = None) -> Path:
    """Return a directory whose jars are a complete Kafka broker."""
    return resolved(_BROKER, cache, progress or _print_progress)


@functools.cache
def find_java() -> Path:
    """Return the Java to run: that of `$JAVA_HOME`, or the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise JavaMissing(
            f"Java {JAVA_MIN} or newer is needed and {where}: install a JRE, or set JAVA_HOME to one."
        )
    version = java_version(Path(found))
    if version < JAVA_MIN:
        raise JavaMissing(
            f"Java {JAVA_MIN} or newer is needed and {found} is {version}: set JAVA_HOME to a newer one."
        )
    return Path(found)


def java_version(java: Path) -> int:
    """Return the major version, such as 17."""
    match = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', java_release(java))
    if match is None:
        raise JarsError(f"{java} does not say its version: set JAVA_HOME to a Java {JAVA_MIN} or newer.")
    return int(match[1])


@functools.cache
def java_release(java: Path) -> str:
    """Return a text that identifies a Java: its file `release`, or else what `java -version` prints, which starts a JVM."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        release = (java.resolve().parent.parent / "release").read_text()
        if "JAVA_VERSION=" in release:  # a script may lie beside another program's file of that name
            return release
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsError(
            f"{java} does not run ({error}): set JAVA_HOME to a Java {JAVA_MIN} or newer."
        ) from error


def pyspark_jars() -> Path:
    """Return the directory of pyspark's jars."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("pyspark is not installed: install queryable-topics[app].")
    return Path(spec.origin).parent / "jars"


@contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Let one process at a time make the file or directory `name` in the cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with file_lock(cache / f".{name}.lock"):
        yield


def resolved(wanted: JarSet, cache: Path, progress: Progress, digests: Path = DIGESTS_FILE) -> Path:
    """Return the directory of these jars in the cache; download them if it is not there."""
    target = cache / wanted.directory
    if target.is_dir():
        return target
    try:
        with locked(cache, wanted.directory), tempfile.TemporaryDirectory(dir=cache) as scratch:
            if not target.is_dir():  # unless another process was faster
                progress(f"Downloading {wanted.what} once, into {target}")
                jars = download(wanted, cache / "ivy", Path(scratch))
                _verify(wanted, jars, cache, digests)
                jars.rename(target)
    except OSError as error:
        raise JarsError(
            f"The cache {cache} cannot be written ({error.strerror}): set QT_CACHE_DIR."
        ) from error
    return target


def digest_lines(wanted: JarSet, jars: Path) -> list[str]:
    """Return a line of `platform/jars.sha256` for each file."""
    return [
        f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {wanted.directory}/{jar.name}"
        for jar in sorted(jars.iterdir())
    ]


def _verify(wanted: JarSet, jars: Path, cache: Path, digests: Path) -> None:
    known = {line for line in digests.read_text().splitlines() if f"  {wanted.directory}/" in line}
    if differing := known.symmetric_difference(digest_lines(wanted, jars)):
        name = min(differing).rpartition("/")[2]
        raise JarsError(
            f"{wanted.what} came with another {name} than the one that this version was tested with (its SHA-256 differs): "
            f"check the mirror that {IVY_SETTINGS_VARIABLE} names and what is between here and it, delete {cache / 'ivy'}, "
            "and try again."
        )


def download(wanted: JarSet, ivy_cache: Path, scratch: Path) -> Path:
    """Return a directory with the downloaded jars, which are not verified yet."""
    into = scratch / "jars"
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(wanted))
    ivy = next(pyspark_jars().glob("ivy-*.jar"), None)
    if ivy is None:
        raise JarsError("This pyspark ships no Ivy: install the pyspark that queryable-topics asks for.")
    command = [str(find_java()), "-jar", str(ivy), "-cache", str(ivy_cache), "-ivy", str(module)]
    # Some libraries are published with the type `bundle`, which is a jar too.
    command += ["-confs", "default", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    if settings := os.environ.get(IVY_SETTINGS_VARIABLE):
        command += ["-settings", settings]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS_MAX)
    except subprocess.TimeoutExpired as error:
        raise JarsError(_download_failed(wanted, f"it took longer than {_RESOLVE_SECONDS_MAX} s")) from error
    missing = [j.name for j in wanted.jars if not (into / f"{j.name}-{j.version}.jar").is_file()]
    if done.returncode or missing:
        raise JarsError(_download_failed(wanted, _ivy_reason(done.stdout + done.stderr)))
    return into


def _ivy_module(wanted: JarSet) -> str:
    dependencies = "".join(
        f'<dependency org="{j.organisation}" name="{j.name}" rev="{j.version}" conf="default->default"'
        f' transitive="{str(wanted.transitive).lower()}"/>'
        for j in wanted.jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="queryabletopics" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _ivy_reason(output: str) -> str:
    """Return the line of Ivy's report that names the error."""
    for pattern in (
        r"Server access [Ee]rror:? (.+)",
        r"UnknownHostException: (.+)",
        r":: (\S+): (?:not found|configuration not found)",
    ):
        if match := re.search(pattern, output):
            return match[0].strip(": ")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "Ivy reported nothing"


def _download_failed(wanted: JarSet, why: str) -> str:
    return (
        f"{wanted.what} could not be downloaded ({why}): check the network, or set {IVY_SETTINGS_VARIABLE} "
        "to an Ivy settings file that names a mirror of Maven Central."
    )


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
