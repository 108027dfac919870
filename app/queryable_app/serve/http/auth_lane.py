"""Take the fast lane for requests with a token, in a view with authentication.

Strategy: a block of header lines whose token is verified is remembered until the token expires, together with the keys that its
bearer may read. So a request on a kept-alive connection costs one more look-up and one comparison of the time. Bad tokens are
refused here too, before there is a task. The guard authenticates every request that takes a task again, so the lane decides
nothing alone but plain reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from ssl import cert_time_to_seconds
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from queryable_app.errors import Failure
from queryable_app.policy.access import Access
from queryable_app.policy.certificates import Certificate, certificate_of, decode_certificate
from queryable_app.policy.tokens import TokenRefused, Why
from queryable_app.serve.api.access import (
    CERTIFICATE,
    CERTIFICATE_HEADER,
    AccessRefused,
    Gate,
    KeyAccess,
    authorization_of,
    refused_key,
    refused_token,
)
from queryable_app.serve.auth.authenticator import Authenticator, KeysMayBeOld
from queryable_app.serve.http.fast_lane import PREFIX, SUFFIX, FastLane
from queryable_app.serve.http.head_cache import HeadCache, HeadKind
from queryable_app.wire.checked import Malformed
from queryable_app.wire.http_text import problem_answer

_BLOCKS_MAX: Final = 1024
_CERTIFICATE: Final = re.compile(rb"\r\n%b:([^\r\n]*)" % CERTIFICATE_HEADER.encode(), re.IGNORECASE)
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
        self._certificate: Certificate | None = None
        self.suspect = False  # the connection of the next look-up has sent bad tokens
        self.current: VerifiedHead | None = None  # what the last look-up found
        self.failed: tuple[str, Exception] | None = None  # the last header that was refused
        authenticator.on_change.append(self._blocks.clear)

    def of_certificate(self, certificate: Certificate) -> VerifiedHeads:
        """Return the map for a connection whose client has shown a certificate. It remembers in the same place."""
        return _CertifiedHeads(self, certificate)

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
            self.failed = None
            head = self.current = self._look(block)
        if head is not None:
            return head.kind
        kind = self._heads[
            block
        ]  # of a block without a token, only that of another node's own request counts
        return kind if kind is HeadKind.FROM_NODE else HeadKind.OTHER

    def _look(self, block: bytes) -> VerifiedHead | None:
        lines, vouched = _AUTHORIZATION.findall(block), _CERTIFICATE.findall(block)
        if len(lines) > 1 or len(vouched) > 1 or not (lines or vouched or self._certificate):
            return None
        kind = self._heads[_CERTIFICATE.sub(b"", _AUTHORIZATION.sub(b"", block))]
        if kind is not HeadKind.FORWARDED and (vouched or kind is not HeadKind.PLAIN):
            return None
        certificate = self._certificate
        if vouched:
            try:
                certificate = decode_certificate(vouched[0].strip(b" \t"))
            except Malformed:
                return None
        authorization = lines[0].strip(b" \t").decode("latin-1") if lines else None
        access = self._authenticate(authorization, certificate)
        if access is None:
            return None
        if len(self._blocks) >= _BLOCKS_MAX:
            self._blocks.clear()
        credentials = (
            b"" if authorization is None else b"authorization: %b\r\n" % authorization.encode("latin-1")
        )
        if certificate is not None:
            credentials += b"%b: %b\r\n" % (CERTIFICATE_HEADER.encode(), certificate.encoded)
        head = VerifiedHead(kind, access.until, access.prefixes.get("read", _NONE), credentials, access)
        self._remember(block, head)
        return head

    def _remember(self, block: bytes, head: VerifiedHead) -> None:
        self._blocks[block] = head

    def _authenticate(self, authorization: str | None, certificate: Certificate | None) -> Access | None:
        """Return what the caller may do, or note in `failed` why the token is refused."""
        try:
            return self._authenticator.authenticate(authorization, self.suspect, certificate)
        except (TokenRefused, KeysMayBeOld, Failure) as failure:
            failure.__traceback__ = None
            self.failed = authorization or "", failure
            return None

    def last_failure(self) -> Exception | None:
        """Return why the token of the last look-up is refused. None: it is not, or the lines say more than that."""
        failed = self._take_failed()
        return None if failed is None else failed[1]

    def failure_of(self, authorization: str | None) -> Exception | None:
        """Return why a token is refused, which the last look-up may have found already."""
        before = self._take_failed()
        if before is not None and before[0] == authorization:
            return before[1]
        if self._authenticate(authorization, self._certificate) is not None:
            return None
        now = self._take_failed()
        assert now is not None
        return now[1]

    def _take_failed(self) -> tuple[str, Exception] | None:
        failed, self.failed = self.failed, None
        return failed


class _CertifiedHeads(VerifiedHeads):
    """Look up blocks of one connection, whose client has shown a certificate."""

    def __init__(self, of_all: VerifiedHeads, certificate: Certificate) -> None:
        self._heads, self._authenticator, self._blocks = of_all._heads, of_all._authenticator, of_all._blocks
        self._certificate = certificate
        self._mark = certificate.digest
        self.suspect, self.current, self.failed = False, None, None

    def verified(self, block: bytes) -> VerifiedHead | None:
        return super().verified(block + self._mark)

    def _remember(self, block: bytes, head: VerifiedHead) -> None:
        super()._remember(block + self._mark, head)


class AuthLane(FastLane):
    """Answer plain point reads with tokens. `protocol_class` binds it to a node."""

    verified_heads: VerifiedHeads  # of the class, unless the client has shown a certificate
    gate: ClassVar[Gate]

    bad_tokens = 0  # of this connection
    certificate: Certificate | None = None  # of the client, if a rule depends on it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = self.client_certificate if self.gate.uses_certificates else None
        if shown:
            self.certificate = certificate_of(shown, float(cert_time_to_seconds(shown["notAfter"])))
            self.heads = self.verified_heads = self.verified_heads.of_certificate(self.certificate)

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
            and not self.unparsed
            and not self.flow.write_paused
            and not self.lacks_certificate
        ):
            self.credentials = head.credentials
            self.turn.read(self, request[1], data)
        else:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        self.verified_heads.suspect = self.bad_tokens > 0
        super()._receive(data)

    def refuse_at_once(self) -> bool:
        """Refuse a read of a key if its token is bad: the fewer steps, the more bad tokens a node bears."""
        if self.flow.write_paused or self.lacks_certificate or self.node.draining:
            return False
        failure = self.verified_heads.last_failure()
        if failure is None or isinstance(failure, KeysMayBeOld):  # a task fetches the keys
            return False
        self.bad_tokens += 1
        refusal = self._refusal(failure)
        counters = self.node.counters
        counters.failures[refusal.reason.slug] += 1
        counters.answers["", refusal.reason.status] += 1
        answer = self.encode_answer(problem_answer(refusal, self.reads.identity))
        self.turn.write(self, answer)
        self.idle_since = self.sweeps
        return True

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
        if self.certificate is not None:
            cycle.scope[CERTIFICATE] = self.certificate  # type: ignore[typeddict-unknown-key]
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
            if self.gate.certificate_of(headers, self.certificate) is not self.certificate:
                return None  # a node forwards the request
        except AccessRefused as refusal:
            self.node.audit.refused(refusal.why, "", refusal.detail)
            return refusal
        try:
            failure = self.verified_heads.failure_of(authorization_of(headers))
        except TokenRefused as refusal:
            failure = refusal
        return None if failure is None or isinstance(failure, KeysMayBeOld) else self._refusal(failure)

    def _refusal(self, failure: Exception) -> Failure:
        """Return what the client of a refused token gets, and log it."""
        if isinstance(failure, Failure):
            self.node.audit.refused(failure.reason.slug, "", failure.detail)
            return failure
        assert isinstance(failure, TokenRefused)
        if failure.why is Why.MISSING:
            self.bad_tokens -= 1  # a client may send one request without a token to learn what is needed
        refused = refused_token(failure)
        self.node.audit.refused(refused.why, "", refused.detail)
        return refused
