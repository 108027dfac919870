"""Call the JVM's decoders of keys and records."""

from __future__ import annotations

from typing import Any

import pytest
from py4j import java_gateway, protocol


def decoded_or_bad(of: Any, encoded: bytes) -> bytes | None:
    """Return what a decoder makes of the bytes, or None if it calls them bad with a reason. Anything else fails the test."""
    with pytest.MonkeyPatch.context() as patch:
        # PySpark's own asks the JVM dozens of times whether an exception is one of Spark's.
        patch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
        try:
            return bytes(of.decode(encoded))
        except protocol.Py4JJavaError as error:
            cause: Any = error.java_exception
            assert (cause.getClass().getSimpleName(), bool(cause.getMessage())) == ("Undecodable", True)
            return None
