"""Call the JVM's decoders of keys and records."""

from __future__ import annotations

from typing import Any

import pytest
from py4j import java_gateway
from py4j.protocol import Py4JJavaError, get_return_value


def decoded_or_bad(of: Any, encoded: bytes) -> bytes | None:
    """Return what a decoder makes of the bytes, or None if it calls them bad with a reason. Anything else fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        # PySpark's own asks the JVM dozens of times whether an exception is one of Spark's.
        patch.setattr(java_gateway, "get_return_value", get_return_value)
        try:
            return bytes(of.decode(encoded))
        except Py4JJavaError as error:
            _reason(error)
            return None


def problem(of: Any, encoded: bytes) -> str:
    """Return the reason for which a decoder calls the bytes bad."""
    with pytest.raises(Py4JJavaError) as raised:
        of.decode(encoded)
    return _reason(raised.value)


def _reason(error: Py4JJavaError) -> str:
    cause: Any = error.java_exception
    reason = cause.getMessage()
    assert (cause.getClass().getSimpleName(), bool(reason)) == ("Undecodable", True)
    return str(reason)
