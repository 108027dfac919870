"""Read a view from Python, straight from the nodes that host the keys.

    from queryable_app.client import QueryableTopic

    with QueryableTopic("http://users.example:8080") as users:
        row = users.get("user-1")

Any room may import it. `operations` and the modules below it decide and touch no network; `sync_client` and `async_client`
send what they decide, through httpx. The names for asyncio are imported on first use, since asyncio takes long to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from queryable_app.client.changes import Change
from queryable_app.client.exceptions import (
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    NoSuchResource,
    NotAvailable,
    NotFreshEnough,
    NotRetained,
    OutcomeUnknown,
    Overloaded,
    QueryableTopicError,
    TooLarge,
    Unauthenticated,
    Unreachable,
    WrongOwner,
)
from queryable_app.client.keys import Key
from queryable_app.client.membership import Membership
from queryable_app.client.options import ReadOptions
from queryable_app.client.rows import UNKNOWN, Group, Row, Unknown, Window, Written
from queryable_app.client.sync_client import Changes, QueryableTopic, Rows, Session

if TYPE_CHECKING:
    from queryable_app.client.async_client import AsyncChanges, AsyncQueryableTopic, AsyncRows, AsyncSession

__all__ = [
    "UNKNOWN",
    "AsyncChanges",
    "AsyncQueryableTopic",
    "AsyncRows",
    "AsyncSession",
    "Change",
    "Changes",
    "DeadlineExceeded",
    "Forbidden",
    "Group",
    "InternalError",
    "InvalidRequest",
    "Key",
    "Membership",
    "NoSuchResource",
    "NotAvailable",
    "NotFreshEnough",
    "NotRetained",
    "OutcomeUnknown",
    "Overloaded",
    "QueryableTopic",
    "QueryableTopicError",
    "ReadOptions",
    "Row",
    "Rows",
    "Session",
    "TooLarge",
    "Unauthenticated",
    "Unknown",
    "Unreachable",
    "Window",
    "Written",
    "WrongOwner",
]


def __getattr__(name: str) -> object:
    if name in ("AsyncChanges", "AsyncQueryableTopic", "AsyncRows", "AsyncSession"):
        return getattr(import_module("queryable_app.client.async_client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
