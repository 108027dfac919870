"""Write permissions as kubectl does: `create pods/eviction`, `list statefulsets.apps`."""

from __future__ import annotations

from queryable_operator.act.cluster import KINDS
from queryable_operator.act.preflight import Permission


def words(permission: Permission) -> str:
    kind, slash, subresource = permission.kind.partition("/")
    where = KINDS[kind]
    return f"{permission.verb} {where.plural}{slash}{subresource}.{where.group}".rstrip(".")
