"""Call the Kubernetes API: plain mappings in and out.

The official client carries the requests, since it supports and renews every kind of credentials. Its typed models, which would
be most of the operator's memory, are never loaded. The client blocks, so requests run in a few threads. Nothing is retried
here: the caller starts over with a new observation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import config
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

from queryable_operator.spec import names
from queryable_operator.spec.observed import Manifest, Ref

_THREADS: Final = 8
_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 10.0
_PAGE_OBJECTS: Final = 500
_MESSAGE_CHARACTERS_MAX: Final = 500

_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Kind:
    """Locate the objects of a kind in the API."""

    group: str  # empty: the core group
    version: str
    plural: str

    @property
    def root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


KINDS: Final[Mapping[str, Kind]] = {
    names.KIND: Kind(names.GROUP, names.VERSION, names.PLURAL),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "EndpointSlice": Kind("discovery.k8s.io", "v1", "endpointslices"),
    "Event": Kind("", "v1", "events"),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "Node": Kind("", "v1", "nodes"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "Pod": Kind("", "v1", "pods"),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets"),
    "Secret": Kind("", "v1", "secrets"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
    "StatefulSet": Kind("apps", "v1", "statefulsets"),
}


class ClusterError(Exception):
    """Report a failed request in one sentence. `status` is the HTTP status; 0: the API server did not answer."""

    def __init__(self, doing: str, status: int, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"cannot {doing}: {message[:_MESSAGE_CHARACTERS_MAX]}")
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def absent(self) -> bool:
        return self.status in (404, 410)

    @property
    def conflict(self) -> bool:
        return self.status == 409


class NoCluster(Exception):
    """Report that no configuration names an API server."""


def configuration() -> Configuration:
    """Return the client's configuration, from the pod's service account or the kubeconfig file."""
    found = Configuration()
    try:
        try:
            config.load_incluster_config(client_configuration=found)
        except config.ConfigException:
            config.load_kube_config(client_configuration=found)
    except (config.ConfigException, OSError) as error:
        raise NoCluster(str(error)) from error
    found.retries = urllib3.Retry(0)
    found.connection_pool_maxsize = _THREADS
    return found


class Cluster:
    def __init__(self, settings: Configuration) -> None:
        self.host: Final[str] = settings.host
        self._api = ApiClient(settings)
        self._threads = ThreadPoolExecutor(_THREADS, "cluster")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def connection(self) -> dict[str, Any]:
        """Return the arguments of kopf's ConnectionInfo for the same API server and user, with a fresh token."""
        settings = self._api.configuration
        header = settings.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
        scheme, _, token = header.rpartition(" ")
        return {
            "server": settings.host,
            "ca_path": settings.ssl_ca_cert,
            "insecure": not settings.verify_ssl,
            "username": settings.username or None,
            "password": settings.password or None,
            "scheme": scheme or None,
            "token": token or None,
            "certificate_path": settings.cert_file,
            "private_key_path": settings.key_file,
        }

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None if it does not exist."""
        try:
            return await self._request("get", "GET", kind, namespace, name)
        except ClusterError as error:
            if error.absent:
                return None
            raise

    async def apply(
        self, namespace: str, manifest: Manifest, resource_version: str | None = None
    ) -> Manifest:
        """Apply an object by server-side apply and take back the operator's fields. With a `resource_version` the request fails
        if the object has changed since."""
        body = dict(manifest)
        if resource_version is not None:
            body["metadata"] = {**body["metadata"], "resourceVersion": resource_version}
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        name = body["metadata"]["name"]
        return await self._request("apply", "PATCH", body["kind"], namespace, name, query, body, _APPLY)

    async def create(self, namespace: str, manifest: Manifest) -> Manifest | None:
        """Create an object. Return None if the name is taken."""
        query = {"fieldManager": names.FIELD_MANAGER}
        try:
            return await self._request("create", "POST", manifest["kind"], namespace, "", query, manifest)
        except ClusterError as error:
            if error.conflict:
                return None
            raise

    async def replace(self, namespace: str, manifest: Manifest) -> Manifest:
        """Replace an object. The request fails if the object has changed since its `resourceVersion`."""
        name = manifest["metadata"]["name"]
        return await self._request("update", "PUT", manifest["kind"], namespace, name, None, manifest)

    async def replace_status(self, resource: Manifest, status: Mapping[str, Any]) -> Manifest:
        """Write the whole status of a QueryableTopic. The request fails if the resource has changed since it was read."""
        meta = resource["metadata"]
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
            {"op": "add", "path": "/status", "value": status},
        ]
        where = (meta["namespace"], f"{meta['name']}/status")
        return await self._request(
            "write the status of", "PATCH", names.KIND, *where, None, patch, _JSON_PATCH
        )

    async def set_finalizers(self, resource: Manifest, finalizers: Sequence[str]) -> Manifest:
        meta = resource["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": list(finalizers)}}
        where = (meta["namespace"], meta["name"])
        return await self._request("set the finalizer of", "PATCH", names.KIND, *where, None, patch, _MERGE)

    async def delete(self, namespace: str, ref: Ref, uid: str, *, force: bool = False) -> None:
        """Delete the object with this `uid`, never a newer one with the same name. `force` does not wait for the kubelet."""
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if force:
            body["gracePeriodSeconds"] = 0
        try:
            await self._request("delete", "DELETE", ref.kind, namespace, ref.name, None, body)
        except ClusterError as error:
            if not error.absent and not error.conflict:
                raise

    async def evict(self, namespace: str, pod: str, uid: str) -> str | None:
        """Evict a pod. Return the reason if a PodDisruptionBudget forbids it now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            await self._request("evict", "POST", "Pod", namespace, f"{pod}/eviction", None, body)
        except ClusterError as error:
            if error.status == 429:
                return str(error)
            if not error.absent and not error.conflict:
                raise
        return None

    async def versions(self, kind: str, namespace: str | None) -> dict[tuple[str, str], str]:
        """Return the `resourceVersion` of all our objects of a kind, by namespace and name. Requests metadata only."""
        query: dict[str, str] = {"limit": str(_PAGE_OBJECTS)}
        if kind not in (names.KIND, "Node"):
            query["labelSelector"] = names.VIEW_LABEL
        found: dict[tuple[str, str], str] = {}
        while True:
            page = await self._request("list", "GET", kind, namespace, "", query, accept=_METADATA_ONLY)
            for item in page["items"] or ():  # the API server encodes an empty list as null
                meta = item["metadata"]
                found[meta.get("namespace", ""), meta["name"]] = meta["resourceVersion"]
            if not (following := page["metadata"].get("continue")):
                return found
            query["continue"] = following

    async def serves(self, kind: str) -> bool:
        """Return whether the API server knows the kind."""
        try:
            await self._read(f"read {KINDS[kind].root}", KINDS[kind].root)
        except ClusterError as error:
            if error.absent:
                return False
            raise
        return True

    async def may(self, verb: str, group: str, resource: str, namespace: str | None, name: str = "") -> bool:
        """Return whether the operator has a permission. `resource` may name a subresource after a slash. No namespace: in all
        of them."""
        plural, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "name": name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "namespace": namespace or ""}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._in_thread(
            f"review the permission to {verb} {resource}", "POST", path, None, body
        )
        return bool(answer["status"]["allowed"])

    async def _read(self, doing: str, path: str) -> Manifest:
        return await self._in_thread(doing, "GET", path, None, None)

    async def _request(
        self,
        verb: str,
        method: str,
        kind: str,
        namespace: str | None,
        name: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Manifest:
        where = KINDS[kind]
        path = where.root
        if namespace:
            path += f"/namespaces/{quote(namespace)}"
        path += f"/{where.plural}"
        if name:
            path += f"/{quote(name)}"
        what = f"{verb} {kind} {name.removesuffix('/status').removesuffix('/eviction')}".rstrip()
        place = f" in {namespace}" if namespace else ""
        return await self._in_thread(what + place, method, path, query, body, content_type, accept)

    async def _in_thread(
        self,
        doing: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Manifest:
        call = partial(self._call, doing, method, path, query, body, content_type, accept)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _call(
        self,
        doing: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str,
    ) -> Manifest:
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        # The body is passed later, so that the client does not walk through it.
        _, url, headers, _, _ = self._api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        url += f"?{urlencode(query)}" if query else ""
        try:
            answer = self._api.call_api(
                method, url, headers, body, _request_timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS)
            )
            text = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(doing, 0, f"the API server at {self.host} does not answer: {error}") from error
        try:
            found = json.loads(text or b"{}")
        except ValueError:
            found = {"message": text[:_MESSAGE_CHARACTERS_MAX].decode(errors="replace")}
        if 200 <= answer.status < 300 and isinstance(found, dict):
            return found
        message = found.get("message") if isinstance(found, dict) else None
        raise ClusterError(
            doing,
            answer.status,
            message or f"the API server answered {answer.status}",
            _seconds(answer.getheader("Retry-After")),
        )


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdecimal() else 0.0
