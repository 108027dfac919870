"""Answers of peers are parsed, and a malformed answer counts as none."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.errors import Failure, Reason
from queryable_app.serve.base.peer_frames import encode_rows
from queryable_app.serve.peers.client import PeerUnavailable
from queryable_app.serve.reads.peer_reads import _cover_answer, _rows_answer, parse_answer, refusal_to_json
from queryable_app.serve.reads.replica_progress import ReplicaProgress

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
STANDING = ReplicaProgress(3, 9, "standby", -1, 5, True)
REFUSED = Failure(Reason.NOT_AVAILABLE, "why", "what to do", partition=4, retry_after_ms=None)


def test_cover_answer_survives_encoding() -> None:
    """Progress and refusals are the same after encoding and parsing."""
    body = encode_rows({"standings": [STANDING], "refused": [refusal_to_json(4, REFUSED)]})
    covered = parse_answer(body, _cover_answer)
    assert covered.progress == {3: STANDING}
    assert refusal_to_json(4, covered.refused[4]) == refusal_to_json(4, REFUSED)


@given(
    st.dictionaries(
        st.sampled_from(["standings", "refused", "last"]),
        JSON
        | st.lists(st.lists(JSON, min_size=6, max_size=6), max_size=2)
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "partition": JSON,
                    "reason": st.sampled_from([reason.name for reason in Reason]) | JSON,
                    "detail": JSON,
                    "advice": JSON,
                    "retryAfterMs": JSON,
                },
            ),
            max_size=2,
        ),
    )
)
def test_any_head_is_parsed_or_refused(head: dict[str, object]) -> None:
    """Parsing raises PeerUnavailable and nothing else, whatever the head has."""
    for understand in (_cover_answer, _rows_answer):
        with suppress(PeerUnavailable):
            parse_answer(encode_rows(head), understand)


def test_answer_without_rows_must_be_the_last() -> None:
    """An answer without rows that announces more is malformed: the next request would not know where to start."""
    with pytest.raises(PeerUnavailable, match="no rows, and more of them"):
        parse_answer(encode_rows({"last": False}), _rows_answer)
