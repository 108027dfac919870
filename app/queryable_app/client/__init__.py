"""The smart client: reads a view from Python, straight from the nodes that hold the keys.

    from queryable_app.client import QueryableTopic

    with QueryableTopic("http://users.example:8080") as users:
        row = users.get("user-1")

Anyone may enter; nothing here imports another room. `operations` and what it imports think, for both clients, and touch no
network; `sync_client` and `async_client` carry out what they say, with `wire`.
"""

from queryable_app.client.async_client import AsyncQueryableTopic, AsyncRows, AsyncSession
from queryable_app.client.exceptions import (
    DeadlineExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    NoSuchResource,
    NotAvailable,
    NotFreshEnough,
    OutcomeUnknown,
    Overloaded,
    QueryableTopicError,
    TooLarge,
    Unauthenticated,
    Unreachable,
    WrongOwner,
)
from queryable_app.client.keys import Key
from queryable_app.client.options import ReadOptions
from queryable_app.client.rows import UNKNOWN, Row, Unknown, Written
from queryable_app.client.sync_client import QueryableTopic, Rows, Session

__all__ = [
    "UNKNOWN",
    "AsyncQueryableTopic",
    "AsyncRows",
    "AsyncSession",
    "DeadlineExceeded",
    "Forbidden",
    "InternalError",
    "InvalidRequest",
    "Key",
    "NoSuchResource",
    "NotAvailable",
    "NotFreshEnough",
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
    "Written",
    "WrongOwner",
]
