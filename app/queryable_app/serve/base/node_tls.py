"""Keep the certificates of a node, and load them again when their files change.

Strategy: the files are read every two seconds. New handshakes use a new certificate, open connections keep the old one. One that
cannot be used is refused: the node keeps the one that it has, and its log, status and metrics say so. If the operator has given
the nodes a certificate of their own, calls between nodes name `node_tls_name`, and are answered with that one. Otherwise nodes
verify each other by `ca.crt` and by the host of their address.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from queryable_app.config.tls import ClientAuth
from queryable_app.config.topic_spec import TopicSpec
from queryable_app.contract import NodeSettings, SettingsError
from queryable_app.platform.certificates import (
    CertificateError,
    CertificateFiles,
    client_context,
    expiry,
    read_certificate_files,
    server_context,
)
from queryable_app.platform.log import event
from queryable_app.serve.base.background import Background

_POLL_SECONDS: Final = 2.0


class MountedCertificate:
    """Hold the newest usable certificate of a directory. Creating it raises CertificateError if there is none."""

    def __init__(self, directory: Path, client_auth: ClientAuth = "none") -> None:
        self._directory, self._client_auth = directory, client_auth
        self.files = self._tried = read_certificate_files(directory)
        self.expires_at = self._checked(self.files)
        self.refused = ""
        """Why the files that are mounted now are not used. Empty: they are."""

    def refresh(self) -> bool:
        """Read the files again, and return whether there is another usable certificate."""
        try:
            files = read_certificate_files(self._directory)
            if files == self._tried:
                return False
            self._tried = files
            expires_at = self._checked(files)
        except CertificateError as error:
            if str(error) != self.refused:
                self.refused = str(error)
                event("certificate-refused", reason=self.refused, kept_until=round(self.expires_at))
            return False
        self.refused = ""
        if files == self.files:
            return False
        self.files, self.expires_at = files, expires_at
        event("certificate-loaded", directory=str(self._directory), expires_at=round(expires_at))
        return True

    def _checked(self, files: CertificateFiles) -> float:
        """Return when the certificate expires. Raises CertificateError if it cannot be used for every purpose now."""
        server_context(files, self._client_auth)
        client_context(files.ca)
        return expiry(files)


class NodeTls(Background):
    """Provide the contexts of the connections that a node accepts and opens."""

    def __init__(self, settings: NodeSettings, client_auth: ClientAuth) -> None:
        self.client_auth = client_auth
        self.node_name = settings.node_tls_name
        """The name by which nodes verify each other. Empty: the host of the address."""
        self.own = MountedCertificate(Path(settings.tls_dir), client_auth)
        self.between: MountedCertificate | None = None
        if settings.node_tls_dir:
            self.between = MountedCertificate(Path(settings.node_tls_dir))
        self.server, self.peers = self._contexts()

    @property
    def mounted(self) -> list[MountedCertificate]:
        return [self.own] if self.between is None else [self.own, self.between]

    @property
    def refused(self) -> str:
        """Return why a mounted certificate is not used, or an empty text."""
        return next((each.refused for each in self.mounted if each.refused), "")

    def to_node(self, host: str) -> tuple[ssl.SSLContext, str]:
        """Return the context of a connection to another node, and the name that its certificate must have."""
        return self.peers, self.node_name or host

    def refresh(self) -> None:
        """Use what has changed on disk."""
        if any([each.refresh() for each in self.mounted]):
            self.server, self.peers = self._contexts()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.refresh()

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = server_context(self.own.files, self.client_auth)
        if self.between is None:
            return server, client_context(self.own.files.ca)
        for_nodes, name = server_context(self.between.files), self.node_name

        def choose(connection: ssl.SSLSocket | ssl.SSLObject, asked: str | None, _: ssl.SSLContext) -> None:
            if asked == name:
                connection.context = for_nodes

        server.sni_callback = choose
        return server, client_context(self.between.files.ca)


def node_tls(settings: NodeSettings, spec: TopicSpec) -> NodeTls | None:
    """Return the certificates of a node, or None if it speaks plain HTTP. Raises CertificateError or SettingsError."""
    if (spec.tls is None) is not (not settings.tls_dir):
        raise SettingsError(
            "spec.tls and QT_TLS_DIR belong together: a node has both or neither; `qtopic run` and the operator set the variable"
        )
    return None if spec.tls is None else NodeTls(settings, spec.tls.client_auth)
