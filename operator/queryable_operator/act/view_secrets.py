"""Read the Secrets of a view that hold certificates and signing keys: the nodes' own, and those that the spec names.

Secrets are not watched: the operator may read single ones and list none. What was read counts for half a minute. No message
shows what a Secret holds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queryable_app.config.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from queryable_app.platform.certificates import (
    CertificateError,
    CertificateFiles,
    client_context,
    expiry,
    server_context,
)
from queryable_operator.act.cluster import Cluster
from queryable_operator.act.node_certificates import StoredCertificates, host_names, stored_certificates
from queryable_operator.act.watch_cache import ResourceKey
from queryable_operator.spec import names
from queryable_operator.spec.certificates import NodeCertificate, names_service
from queryable_operator.spec.observed import Ref, is_owned

_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class SeenSecrets:
    stored: StoredCertificates | None = None
    certificate: NodeCertificate | None = None
    conflict: Ref | None = None
    """The Secret between nodes, if it belongs to another owner."""

    problem: str | None = None
    """Why nodes cannot use a Secret that the spec names."""

    @property
    def ca(self) -> bytes:
        return b"" if self.stored is None else self.stored.ca


class ViewSecrets:
    """Read the Secrets of one view."""

    def __init__(self, key: ResourceKey, cluster: Cluster) -> None:
        self._namespace, self._view = key
        self._cluster = cluster
        self._seen, self._seen_of, self._seen_at = SeenSecrets(), "", float("-inf")

    def forget(self) -> None:
        """Read again at the next pass."""
        self._seen_at = float("-inf")

    async def seen(self, spec: Mapping[str, Any], uid: str, has_tls_nodes: bool) -> SeenSecrets:
        """Return what the Secrets are. `has_tls_nodes`: also if the spec asks for no TLS, nodes of a revision have it."""
        between = has_tls_nodes or spec.get("tls") is not None
        of, now = json.dumps([spec.get("tls"), spec.get("auth"), between], sort_keys=True), time.monotonic()
        if of != self._seen_of or now - self._seen_at > _SECONDS:
            own = await self._between_nodes(uid) if between else SeenSecrets()
            problem = await self._tls_problem(spec.get("tls") or {}) or await self._auth_problem(
                spec.get("auth") or {}
            )
            self._seen = SeenSecrets(own.stored, own.certificate, own.conflict, problem)
            self._seen_of, self._seen_at = of, now
        return self._seen

    async def _between_nodes(self, uid: str) -> SeenSecrets:
        name = names.node_certificate(self._view)
        live = await self._cluster.get("Secret", self._namespace, name)
        if live is None:
            return SeenSecrets()
        if not is_owned(live, uid):
            return SeenSecrets(conflict=Ref("Secret", name))
        stored = stored_certificates(live)
        return SeenSecrets(stored, None if stored is None else stored.described())

    async def _tls_problem(self, tls: Mapping[str, Any]) -> str | None:
        name = tls.get("secretRef", {}).get("name")
        if name is None:
            return None
        data = await self._data(name)
        if isinstance(data, str):
            return f"spec.tls.secretRef: {data}"
        if missing := [file for file in (CERTIFICATE_FILE, KEY_FILE) if file not in data]:
            return f"spec.tls.secretRef: the Secret {name} has no {' and no '.join(missing)}"
        files = CertificateFiles(
            data[CERTIFICATE_FILE], data[KEY_FILE], data.get(CA_FILE, b""), f"Secret {name}"
        )
        try:
            await asyncio.to_thread(_check, files, tls.get("clientAuth", "none"))
        except CertificateError as error:
            where = "" if name in str(error) else f"Secret {name}: "
            return f"spec.tls.secretRef: {where}{error}. Nodes that have an earlier certificate keep it"
        if not names_service(host_names(files.certificate), self._namespace, self._view):
            service = f"{self._view}.{self._namespace}.svc"
            return f"spec.tls.secretRef: Secret {name}: {CERTIFICATE_FILE} does not name {service}, so clients refuse it"
        return None

    async def _auth_problem(self, auth: Mapping[str, Any]) -> str | None:
        reference = auth.get("jwt", {}).get("secretRef")
        if reference is None:
            return None
        data = await self._data(reference["name"])
        if isinstance(data, str):
            return f"spec.auth.jwt.secretRef: {data}"
        if reference["key"] not in data:
            return f"spec.auth.jwt.secretRef: the Secret {reference['name']} has no key {reference['key']}"
        return None

    async def _data(self, name: str) -> Mapping[str, bytes] | str:
        """Return the contents of a Secret, or why there are none."""
        live = await self._cluster.get("Secret", self._namespace, name)
        if live is None:
            return f"the Secret {name} does not exist in the namespace {self._namespace}"
        try:
            return {key: base64.b64decode(text) for key, text in (live.get("data") or {}).items()}
        except (binascii.Error, TypeError, ValueError):
            return f"the Secret {name} cannot be read"


def _check(files: CertificateFiles, client_auth: Any) -> None:
    server_context(files, client_auth)
    client_context(files.ca)
    expiry(files)
