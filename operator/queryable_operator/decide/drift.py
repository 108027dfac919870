"""Find the first difference between a desired object and the live one, and describe it.

Fields that others added stay, such as the API server's defaults or another tool's label. The description goes into an event and
may therefore contain numbers and booleans only: other values can be secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queryable_operator.spec.observed import Manifest
from queryable_operator.spec.quantity import quantity

# Lists whose items the API server identifies by these fields. Others may add items of their own.
_IDENTITY: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
# Mappings that are one value: an additional label in a selector makes another selection.
_WHOLE: Final = (
    "from",
    "ipBlock",
    "labelSelector",
    "matchLabels",
    "namespaceSelector",
    "nodeSelector",
    "podSelector",
    "selector",
)
_EMPTY: Final[tuple[Any, ...]] = (None, "", {}, [])  # the API server drops them
_QUANTITIES: Final = ("requests", "limits", "sizeLimit")


def difference(wanted: Manifest, live: Manifest) -> str | None:
    """Return the first difference, or None if there is nothing to apply."""
    return _in_mapping(wanted, live, ())


_Path = tuple[str, ...]


def _in_value(wanted: Any, live: Any, path: _Path) -> str | None:
    if isinstance(wanted, dict):  # a check of an abstract type takes much longer
        return _in_mapping(wanted, live if isinstance(live, dict) else {}, path)
    if isinstance(wanted, list | tuple):
        return _in_list(wanted, live if isinstance(live, list | tuple) else (), path)
    if _same(wanted, live, path):
        return None
    if isinstance(wanted, bool | int) and isinstance(live, bool | int):
        return f"{_words(path)} is {_shown(live)} and should be {_shown(wanted)}"
    return f"{_words(path)} differs"


def _in_mapping(wanted: Manifest, live: Manifest, path: _Path) -> str | None:
    for name, value in wanted.items():
        if isinstance(value, str) and live.get(name) == value:
            continue  # so are most fields, of every object in every pass
        if name not in live and value not in _EMPTY:
            return f"{_words((*path, name))} is missing"
        if name in live and (found := _in_value(value, live[name], (*path, name))):
            return found
    if path and path[-1].partition("[")[0] in _WHOLE:
        for name in sorted(live.keys() - wanted.keys()):
            return f"{_words((*path, name))} is not allowed"
    return None


def _in_list(wanted: Sequence[Any], live: Sequence[Any], path: _Path) -> str | None:
    fields = _IDENTITY.get(path[-1])
    if fields is None:
        if len(wanted) != len(live):
            return f"{_words(path)} has {len(live)} entries and should have {len(wanted)}"
        there = {str(n): item for n, item in enumerate(live)}
        items = {str(n): item for n, item in enumerate(wanted)}
    else:
        there = {_key(item, fields): item for item in live}
        items = {_key(item, fields): item for item in wanted}
    for key, item in items.items():
        here = (*path[:-1], f"{path[-1]}[{key}]")
        if key not in there:
            return f"{_words(here)} is missing"
        if found := _in_value(item, there[key], here):
            return found
    return None


def _key(item: Mapping[str, Any], fields: tuple[str, ...]) -> str:
    return "/".join(str(item.get(field, "")) for field in fields)


def _same(wanted: Any, live: Any, path: _Path) -> bool:
    if wanted == live and isinstance(wanted, bool) == isinstance(live, bool):
        return True
    if not any(name in _QUANTITIES for name in path[-2:]):
        return False
    try:
        return quantity(wanted) == quantity(live)
    except ValueError:
        return False


def _words(path: _Path) -> str:
    return ".".join(path)


def _shown(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
