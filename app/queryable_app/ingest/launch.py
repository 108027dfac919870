"""Start the JVM of a node with the options that suit it, without PySpark.

PySpark takes half a second to import, so a node imports it while the JVM starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

from queryable_app.ingest.class_archive import archive_options
from queryable_app.ingest.executors import make_spark_home
from queryable_app.ingest.jvm import StartedJvm, class_path, start_jvm

FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"
"""Leaves code as the first compiler made it: a JVM that lives for seconds gains nothing from the second one."""


class DescriptorsTooFew(Exception):
    """The hard limit of open descriptors is below what the JVM needs."""


@dataclass(frozen=True, slots=True)
class Profile:
    threads: int
    """Tasks that can run at the same time: at least the partitions of the topic."""

    heap: str
    """The JVM's heap, such as `512m`."""

    scratch: Path
    """A directory that only this process uses. It must exist."""

    cache: Path
    """The directory of jars and class archives."""

    executors: int = 0
    """The executors that run the tasks, as processes that the JVM starts. 0: the JVM runs them itself."""

    pod_address: str = ""
    """The address at which executors connect that are pods. Empty: there are none."""

    token: str = field(default="", repr=False)
    """The token of the view's nodes, if executors are pods."""

    options: tuple[str, ...] = ()
    """More options of the JVM."""


def launch(profile: Profile, training: Sequence[str] = ()) -> StartedJvm:
    """Start the JVM. Fetch or build what the cache lacks.

    `training` are JVM options of a run that makes the class archive, in place of those that use it.
    """
    jars = class_path(profile.cache)
    archive = training or archive_options(profile.cache, jars)
    home = make_spark_home(profile.scratch) if profile.executors else {}
    options = [*java_options(profile), *archive]
    return start_jvm(jars, profile.heap, options, profile.scratch, home)


def java_options(profile: Profile) -> list[str]:
    directives = resources.files("queryable_app.ingest").joinpath("compiler_directives.json")
    return [
        "-XX:+UseSerialGC",
        # Fewer searches of page tables. Linux gives such pages on request by default; where it does not, nothing changes.
        "-XX:+UseTransparentHugePages",
        # Code that has to wait for the second compiler is not profiled meanwhile, which makes it slower.
        "-XX:Tier3DelayOn=0",
        # Deeper, the second compiler compiles Kafka's client again into each of Spark's iterators above it.
        "-XX:MaxInlineLevel=9",
        "-XX:+UnlockDiagnosticVMOptions",
        # At the address for which the class archive was made. At another one the JVM first writes all of its 190 MB.
        "-XX:ArchiveRelocationMode=0",
        f"-XX:CompilerDirectivesFile={directives}",
        "-XX:-DisplayVMOutput",  # how many directives there are
        "-Xss8m",  # Spark recognises a stopped query by a regular expression that recurses deeply
        "-Xlog:disable",  # warnings of the JVM itself, on standard output
        "-Xlog:all=error:stderr",
        "-XX:-UsePerfData",  # a file in /tmp without a reader
        "-XX:+ExitOnOutOfMemoryError",  # with code 3; the supervisor of ingest starts it again
        f"-Djava.io.tmpdir={profile.scratch}",
        "-Dslf4j.provider=io.queryabletopics.EventLogs",
        "-Dlog4j.provider=org.apache.logging.log4j.simple.internal.SimpleProvider",  # else Log4j configures itself
        "-Dslf4j.internal.verbosity=WARN",  # which provider it takes
        *profile.options,
    ]
