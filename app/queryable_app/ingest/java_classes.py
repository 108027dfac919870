"""Find classes of the JVM through Py4J.

Py4J finds `jvm.java.util.HashMap` in steps: it asks the JVM for a class `java`, then for one called `java.util`. Each of these is
looked for in every one of Spark's jars, which takes 1 to 4 ms of CPU. A full name is found in one step, and at once.
"""

from __future__ import annotations

from typing import Any


def java_class(jvm: Any, name: str) -> Any:
    """Return the class of this full name."""
    return getattr(jvm, name)


def own_class(jvm: Any, name: str) -> Any:
    """Return a class of this project."""
    return java_class(jvm, f"io.queryabletopics.{name}")
