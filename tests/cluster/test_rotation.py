"""Test on a cluster that secrets of a view are replaced while it is read: the key of its tokens, the nodes' token, and the
credentials for Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queryable_operator.spec import names
from tests.support import tokens
from tests.support.view_on_cluster import KAFKA_USERS, SMALL, Caller, Platform, ViewOnCluster, available_view

pytestmark = pytest.mark.timeout(900)

JWT, KAFKA = "rotated-jwt", "rotated-kafka"
TOKEN_FILE = "rotated.token"
OLD, NEW = tokens.SECRET, tokens.OTHER_SECRET


@pytest.fixture(scope="module")
def view(platform: Platform) -> Iterator[ViewOnCluster]:
    """Yield a view of two nodes with all partitions, whose callers need tokens, and which is a user of Kafka."""
    platform.write_secret(JWT, {"hmac": OLD})
    platform.write_secret(KAFKA, settings_of("first"))
    token_file = platform.write(TOKEN_FILE, tokens.token(OLD))
    spec = {
        **SMALL,
        "replicas": 2,
        "standbyReplicas": 1,
        "kafka": {"bootstrapServers": "kafka:9094", "secretRef": {"name": KAFKA}},
        "auth": {
            "jwt": {**tokens.SECRET_REF, "secretRef": {"name": JWT, "key": "hmac"}},
            "rules": [{"claim": "scope", "contains": "read", "allow": ["read"]}],
        },
    }
    with available_view(platform, "rotated", spec, Caller(token_file=token_file)) as made:
        made.wait_until_settled()
        yield made


def settings_of(user: str) -> dict[str, bytes]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security.protocol": b"SASL_PLAINTEXT",
        "sasl.mechanism": b"PLAIN",
        "sasl.jaas.config": f'{module} required username="{user}" password="{KAFKA_USERS[user]}";'.encode(),
    }


def statuses(view: ViewOnCluster, secret: bytes) -> set[int]:
    """Return what each node answers to a caller whose token is signed with this key."""
    caller = Caller(token_file=view.platform.write("probe.token", tokens.token(secret)))
    addresses = [f"{each}/v1/placement" for each in view.placement()["addresses"]]
    return {each["status"] for each in view.platform.clients("ask", *addresses, caller=caller)}


def token_of_nodes(view: ViewOnCluster) -> Any:
    revision = names.revision_number(view.active)
    assert revision is not None
    return view.platform.listed("secret", f"/{names.child(view.name, revision)}")["data"]


def test_key_of_tokens_is_replaced_without_a_failed_read(view: ViewOnCluster) -> None:
    """Nodes accept the next key beside the present one, then callers sign with it, and then the old one is refused."""
    platform, pods = view.platform, view.uids()
    with view.no_read_fails():
        platform.write_secret(JWT, {"hmac": OLD, "hmac.next": NEW})
        view.bring_secrets()
        platform.eventually("nodes accept the next key", lambda: statuses(view, NEW) == {200})
        assert statuses(view, OLD) == {200}
        platform.write(TOKEN_FILE, tokens.token(NEW))
        platform.write_secret(JWT, {"hmac": NEW})
        view.bring_secrets()
        platform.eventually("nodes refuse the old key", lambda: statuses(view, OLD) == {401})
    assert view.uids() == pods


def test_credentials_for_kafka_are_replaced_without_a_failed_read(view: ViewOnCluster) -> None:
    """The pods restart one after the other with the new user, and the view goes on from Kafka."""
    platform, pods = view.platform, view.uids()
    with view.no_read_fails():
        platform.write_secret(KAFKA, settings_of("second"))
        platform.eventually("both pods are new", lambda: not set(pods.values()) & set(view.uids().values()))
    read = "print(open('/etc/qt/kafka/sasl.jaas.config').read())"
    assert all('username="second"' in view.execute(n, "serve", "python", "-c", read) for n in range(2))
    platform.produce(view.topic, {"after": '{"n": 1}'})
    assert view.values("after") == {"after": (200, {"n": 1})}


def test_token_between_nodes_is_replaced_without_a_failed_read(view: ViewOnCluster) -> None:
    """A new revision has a token of its own, and takes over without a failed read."""
    before = token_of_nodes(view)
    with view.no_read_fails():
        view.patch(redeployNonce=1)
        view.platform.eventually("the new revision is active", lambda: view.active == "r2")
    assert token_of_nodes(view) != before
