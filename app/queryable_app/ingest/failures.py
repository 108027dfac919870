"""Classify failures of Spark, the JVM and Kafka's client as permanent or transient.

Strategy: a list of the known permanent failures. Every other failure is transient, and so is every failure with an I/O error
among its causes: an unreachable broker, a full disk, a file that one node lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from queryable_app.ingest.catalyst import SqlError
from queryable_app.ingest.launch import DescriptorsTooFew
from queryable_app.ingest.writer_check import WriterBroken
from queryable_app.platform.jars import JavaMissing
from queryable_app.wire.ingest_failures import IngestFailure, one_line

_MESSAGE_CHARACTERS_MAX: Final = 600
_TRANSIENT_PACKAGES: Final = ("java.io.", "java.net.", "java.nio.", "java.util.zip.", "java.util.concurrent.")
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
# Spark uses the same states for data loss in Kafka and for its own state. serve decides about those.
_OTHER_CONDITIONS: Final = (
    "KAFKA_",
    "STREAM",
    "STATE_STORE",
    "CANNOT_LOAD",
    "CANNOT_READ",
    "CANNOT_WRITE",
    "DATA_SOURCE",
)


class PermanentFailure(Exception):
    """A permanent failure that has been classified already."""

    def __init__(self, failure: IngestFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def permanent_failure(error: BaseException | None) -> IngestFailure | None:
    """Return the failure if it is permanent, None if it is transient."""
    if isinstance(error, PermanentFailure):
        return error.failure
    if isinstance(error, SqlError):
        return IngestFailure(error.reason, one_line(str(error)))
    if isinstance(error, DescriptorsTooFew):
        return IngestFailure("DescriptorLimitTooLow", str(error))
    if isinstance(error, JavaMissing):
        return IngestFailure("JavaMissing", str(error))
    if isinstance(error, WriterBroken):
        # Rows that arrive changed are a defect. Other obstacles, like a full disk, are transient.
        same_always = error.__cause__ is None or permanent_failure(error.__cause__) is not None
        return IngestFailure("WriterBroken", _bounded(str(error))) if same_always else None
    if isinstance(error, TypeError) and "JavaPackage" in str(
        error
    ):  # Py4J reports a missing class as a package
        return IngestFailure(
            "ClassMissing", "a class that ingest calls is not on the JVM's class path: use another image"
        )
    causes = [(str(cause.getClass().getName()), cause) for cause in _causes(error)]
    if any(name.startswith(_TRANSIENT_PACKAGES) for name, _ in causes):
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
    if "bootstrap.servers" in message:  # usually a name that does not resolve yet
        return None
    if name == _ARGUMENT and "JAAS" in message:  # the message may contain a part of a password
        message = "Kafka's client cannot parse sasl.jaas.config"
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
    if not state.startswith(_SQL_STATES) or condition.startswith(_OTHER_CONDITIONS):
        return None
    message = _bounded(_first_line(str(cause.getMessage())))
    return IngestFailure("TransformFailed", f"spec.transform.sql: it fails at a record: {message}")


def _condition_of(cause: Any) -> tuple[str, str]:
    """Return Spark's name and SQLSTATE of an error; two empty texts if the error has none."""
    try:
        return str(cause.getCondition() or ""), str(cause.getSqlState() or "")
    except Exception:  # Py4J: the exception has no such method
        return "", ""


def _causes(error: BaseException | None) -> Iterator[Any]:
    """Yield the Java exception of an error and all its causes, the outermost first."""
    cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    if cause is None and (inner := getattr(error, "_cause", None)) is not None:
        yield from _causes(inner)  # PySpark keeps only the cause of a query's failure
    while cause is not None:
        yield cause
        cause = cause.getCause()


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def _bounded(text: str) -> str:
    return text[:_MESSAGE_CHARACTERS_MAX]
