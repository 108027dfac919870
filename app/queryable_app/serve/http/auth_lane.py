"""Take the fast lane for requests with a token, in a view with authentication.

Strategy: a block of header lines whose token is verified is remembered until the token expires, together with the keys that its
bearer may read. So a request on a kept-alive connection costs one more look-up and one comparison of the time. Bad tokens are
refused here too, before there is a task. The guard authenticates every request that takes a task again, so the lane decides
nothing alone but plain reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from queryable_app.errors import Failure
from queryable_app.policy.access import Access
from queryable_app.policy.tokens import TokenRefused, Why
from queryable_app.serve.api.access import Gate, KeyAccess, authorization_of, refused_key, refused_token
from queryable_app.serve.auth.authenticator import Authenticator, KeysMayBeOld
from queryable_app.serve.http.fast_lane import PREFIX, SUFFIX, FastLane
from queryable_app.serve.http.head_cache import HeadCache, HeadKind
from queryable_app.wire.http_text import problem_answer

_BLOCKS_MAX: Final = 1024
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization:([^\r\n]*)", re.IGNORECASE)
_NONE: Final[tuple[bytes, ...]] = ()


class VerifiedHead(NamedTuple):
    """A block of header lines whose token is verified."""

    kind: HeadKind
    until: float
    prefixes: tuple[bytes, ...]  # of the keys that its bearer may read
    credentials: bytes  # the line with the token, for another node
    access: Access


class VerifiedHeads:
    """Map the bytes of a block of header lines to its kind: OTHER without a token that is verified at once."""

    def __init__(self, heads: HeadCache, authenticator: Authenticator) -> None:
        self._heads = heads
        self._authenticator = authenticator
        self._blocks: dict[bytes, VerifiedHead] = {}
        self.suspect = False  # the connection of the next look-up has sent bad tokens
        self.current: VerifiedHead | None = None  # what the last look-up found
        self.failed: tuple[str, Exception] | None = None  # the last header that was refused
        authenticator.on_change.append(self._blocks.clear)

    def verified(self, block: bytes) -> VerifiedHead | None:
        """Return what is remembered of a block."""
        head = self._blocks.get(block)
        if head is None or self._authenticator.clock() >= head.until:
            return None
        self.current = head
        return head

    def get(self, block: bytes) -> HeadKind | None:
        head = self.verified(block)
        return None if head is None else head.kind

    def __getitem__(self, block: bytes) -> HeadKind:
        head = self.verified(block)
        if head is None:
            head = self.current = self._look(block)
        if head is not None:
            return head.kind
        kind = self._heads[
            block
        ]  # of a block without a token, only that of another node's own request counts
        return kind if kind is HeadKind.FROM_NODE else HeadKind.OTHER

    def _look(self, block: bytes) -> VerifiedHead | None:
        lines = _AUTHORIZATION.findall(block)
        if len(lines) != 1:
            return None
        kind = self._heads[_AUTHORIZATION.sub(b"", block)]
        if kind not in (HeadKind.PLAIN, HeadKind.FORWARDED):
            return None
        authorization: str = lines[0].strip(b" \t").decode("latin-1")
        access = self.authenticate(authorization)
        if access is None:
            return None
        if len(self._blocks) >= _BLOCKS_MAX:
            self._blocks.clear()
        credentials = b"authorization: %b\r\n" % authorization.encode("latin-1")
        head = self._blocks[block] = VerifiedHead(
            kind, access.until, access.prefixes.get("read", _NONE), credentials, access
        )
        return head

    def authenticate(self, authorization: str | None) -> Access | None:
        """Return what the bearer of the token may do, or note in `failed` why the token is refused."""
        try:
            return self._authenticator.authenticate(authorization, self.suspect)
        except (TokenRefused, KeysMayBeOld, Failure) as failure:
            failure.__traceback__ = None
            self.failed = authorization or "", failure
            return None

    def failure_of(self, authorization: str | None) -> Exception | None:
        """Return why a token is refused, which the last look-up may have found already."""
        before = self._take_failed()
        if before is not None and before[0] == authorization:
            return before[1]
        if self.authenticate(authorization) is not None:
            return None
        now = self._take_failed()
        assert now is not None
        return now[1]

    def _take_failed(self) -> tuple[str, Exception] | None:
        failed, self.failed = self.failed, None
        return failed


class AuthLane(FastLane):
    """Answer plain point reads with tokens. `protocol_class` binds it to a node."""

    verified_heads: ClassVar[VerifiedHeads]
    gate: ClassVar[Gate]

    bad_tokens = 0  # of this connection

    def data_received(self, data: bytes) -> None:
        """Answer a request whose row is found at once; `_receive` takes any other input."""
        request = self.request_line(data)
        if (
            request is not None
            and self.idle_since is not None
            and len(data) <= self.request_bytes_max
            and (head := self.verified_heads.verified(data[request.end() :])) is not None
            and head.kind is HeadKind.PLAIN
            and request[1].startswith(head.prefixes)
            and self.reads.answers_at_once
            and not self.unparsed
            and not self.flow.write_paused
            and not self.lacks_certificate
        ):
            if self.server_headers is not self.server_state.default_headers:
                self.render_server_lines()
            answer = self.reads.found_at_once(request[1], self.server_lines)
            if isinstance(answer, bytes):
                self.node.counters.fast_answers += 1
                self._write(answer)
                self.idle_since = self.sweeps
                return
            self.credentials = head.credentials
            if answer is not None and self._forward(request[1], answer):
                return
        self.verified_heads.suspect = self.bad_tokens > 0
        self._receive(data)

    def _try_answer(self, data: bytes, end: int) -> bool:
        """Answer or forward a request for a key that its bearer may read. The guard refuses any other."""
        head = self.verified_heads.current
        key = unquote_to_bytes(data[len(PREFIX) : end - len(SUFFIX)])
        if head is None or not key.startswith(head.prefixes):
            return False
        self.credentials = head.credentials
        return super()._try_answer(data, end)

    def _answer_keys(self, keys: list[bytes]) -> int:
        """Answer the reads of these keys, which another node forwards for one caller, as far as the caller may read them."""
        head = self.verified_heads.current
        prefixes = _NONE if head is None else head.prefixes
        if all([unquote_to_bytes(key).startswith(prefixes) for key in keys]):
            return super()._answer_keys(keys)
        for answered, key in enumerate(keys):
            if self.flow.write_paused:
                return answered
            if unquote_to_bytes(key).startswith(prefixes):
                super()._answer_keys([key])
            else:
                self._refuse_key(unquote_to_bytes(key), "" if head is None else head.access.subject)
        return len(keys)

    def _refuse_key(self, key: bytes, subject: str) -> None:
        failure = refused_key(KeyAccess("read", _NONE, subject), key)
        self.node.counters.failures[failure.reason.slug] += 1
        self.node.audit.refused(failure.why, failure.operation, failure.detail, subject, key)
        self._write_many([self.encode_answer(problem_answer(failure, self.reads.identity))])

    def queue_multi_get(self, data: bytes) -> bool:
        """Leave multi-gets to the task, which looks at every key."""
        return False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        failure = self._token_failure(cycle.scope["path"], cycle.scope["headers"])
        if failure is None or cycle.disconnected:
            super()._start_asgi_task(cycle, app)
            return
        self.bad_tokens += 1
        self._reject(cycle, problem_answer(failure, self.reads.identity), failure.reason)

    def _token_failure(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Failure | None:
        """Return why a request's token is refused. None: it is not, or the guard must decide."""
        if not self.gate.needs_token(path, headers):
            return None
        self.verified_heads.suspect = self.bad_tokens > 0
        try:
            failure = self.verified_heads.failure_of(authorization_of(headers))
        except TokenRefused as refusal:
            failure = refusal
        if failure is None or isinstance(failure, KeysMayBeOld):
            return None
        if isinstance(failure, Failure):
            self.node.audit.refused(failure.reason.slug, "", failure.detail)
            return failure
        assert isinstance(failure, TokenRefused)
        if failure.why is Why.MISSING:
            self.bad_tokens -= 1  # a client may send one request without a token to learn what is needed
        refused = refused_token(failure)
        self.node.audit.refused(refused.why, "", refused.detail)
        return refused
