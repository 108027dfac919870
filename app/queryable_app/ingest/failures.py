"""Which failures of Spark, the JVM and Kafka's client waiting cannot mend.

Strategy: a list of what is known to be permanent. Everything else may pass, and so does everything that has an input or output
error among its causes: an unreachable broker, a full disk, or a file that one node lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from queryable_app.ingest.transform import SqlError
from queryable_app.ingest.writer_check import WriterBroken
from queryable_app.platform.jars import JavaMissing
from queryable_app.wire.ingest_failures import IngestFailure, one_line

_MESSAGE_CHARACTERS_MAX: Final = 600
_MAY_PASS: Final = ("java.io.", "java.net.", "java.nio.", "java.util.zip.", "java.util.concurrent.")
_SETTINGS: Final = (
    "org.apache.kafka.common.config.ConfigException",
    "org.apache.kafka.common.errors.InvalidConfigurationException",
)
_ARGUMENT: Final = "java.lang.IllegalArgumentException"
_CLASSES: Final = (
    "java.lang.ClassNotFoundException",
    "java.lang.NoClassDefFoundError",
    "java.lang.NoSuchMethodError",
    "java.lang.NoSuchFieldError",
    "java.lang.UnsupportedClassVersionError",
    "java.lang.IncompatibleClassChangeError",
    "java.lang.AbstractMethodError",
)
# Classes of SQLSTATE: data exception, cardinality, syntax or access rule, unsupported feature, raised by the SQL itself.
_SQL_STATES: Final = ("22", "21", "42", "0A", "P0")
# Spark gives the same states to losses in Kafka and to its own state: those are for serve to judge.
_NOT_OF_THE_SQL: Final = (
    "KAFKA_",
    "STREAM",
    "STATE_STORE",
    "CANNOT_LOAD",
    "CANNOT_READ",
    "CANNOT_WRITE",
    "DATA_SOURCE",
)


class PermanentFailure(Exception):
    """Ingest has failed for good, for a reason that is known already."""

    def __init__(self, failure: IngestFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class DescriptorsTooFew(Exception):
    """The hard limit of open descriptors is below what the JVM needs."""


def permanent_failure(error: BaseException | None) -> IngestFailure | None:
    """Return the failure if waiting cannot mend it, None if it may pass."""
    if isinstance(error, PermanentFailure):
        return error.failure
    if isinstance(error, SqlError):
        return IngestFailure(error.reason, one_line(str(error)))
    if isinstance(error, DescriptorsTooFew):
        return IngestFailure("DescriptorLimitTooLow", str(error))
    if isinstance(error, JavaMissing):
        return IngestFailure("JavaMissing", str(error))
    if isinstance(error, WriterBroken):
        # Rows that arrive changed are a defect. What else keeps them from arriving may pass, like a full disk.
        same_always = error.__cause__ is None or permanent_failure(error.__cause__) is not None
        return IngestFailure("WriterBroken", _bounded(str(error))) if same_always else None
    if isinstance(error, TypeError) and "JavaPackage" in str(
        error
    ):  # Py4J takes a class that is missing for a package
        return IngestFailure(
            "ClassMissing", "a class that ingest calls is not on the JVM's class path: use another image"
        )
    causes = [(str(cause.getClass().getName()), cause) for cause in _causes(error)]
    if any(name.startswith(_MAY_PASS) for name, _ in causes):
        return None
    for name, cause in reversed(causes):
        if (
            failure := _of_settings(name, str(cause.getMessage() or ""))
            or _of_classes(name, cause)
            or _of_sql(cause)
        ):
            return failure
    return None


def _of_settings(name: str, message: str) -> IngestFailure | None:
    if "bootstrap.servers" in message:  # most often a name that cannot be resolved yet
        return None
    if name == _ARGUMENT and "JAAS" in message:  # the rest of the message may be a part of a password
        message = "sasl.jaas.config is not as Kafka's client reads it"
    elif name not in _SETTINGS and not (name == _ARGUMENT and message.strip().startswith("Kafka option ")):
        return None
    return IngestFailure(
        "KafkaSettingsRefused",
        f"spec.kafka: Kafka's client refuses the settings: {_bounded(_first_line(message))}",
    )


def _of_classes(name: str, cause: Any) -> IngestFailure | None:
    if name not in _CLASSES:
        return None
    simple = name.rpartition(".")[2]
    return IngestFailure(
        "ClassMissing", f"the JVM lacks a class: {simple}: {_bounded(_first_line(str(cause.getMessage())))}"
    )


def _of_sql(cause: Any) -> IngestFailure | None:
    condition, state = _condition_of(cause)
    if not state.startswith(_SQL_STATES) or condition.startswith(_NOT_OF_THE_SQL):
        return None
    message = _bounded(_first_line(str(cause.getMessage())))
    return IngestFailure("TransformFailed", f"spec.transform.sql: it fails at a record: {message}")


def _condition_of(cause: Any) -> tuple[str, str]:
    """Return the name and the SQLSTATE that Spark gives to an error; empty for an error that is not Spark's."""
    try:
        return str(cause.getCondition() or ""), str(cause.getSqlState() or "")
    except Exception:  # Py4J: there is no such method
        return "", ""


def _causes(error: BaseException | None) -> Iterator[Any]:
    """Yield the Java exception of an error and all its causes, the outermost first."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if cause is None and (inner := getattr(error, "_cause", None)) is not None:
        yield from _causes(inner)  # PySpark keeps of a query's death only what caused it
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def _bounded(text: str) -> str:
    return text[:_MESSAGE_CHARACTERS_MAX]
