"""A node follows the Secret that tokens are signed with, while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queryable_app.contract import SettingsError
from queryable_app.policy.tokens import verify_signature
from queryable_app.serve.auth import authenticator
from queryable_app.serve.auth.audit import LINES_BURST, Audit
from queryable_app.serve.auth.shared_secret import SharedSecret
from tests.support.served import Served, served
from tests.support.tokens import OTHER_SECRET, SECRET, SECRET_REF, bearer, secret_directory
from tests.support.waiting import eventually

RULES = [{"allow": ["read", "admin"]}]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    settings = {"auth_secret_dir": secret_directory(tmp_path / "jwt")}
    with served(tmp_path / "node", settings=settings, auth={"jwt": SECRET_REF, "rules": RULES}) as running:
        running.put(b"a", b"1")
        source: Any = running.node.authenticator and running.node.authenticator.source
        source._look_seconds = 0.05
        running.begin(source.start()).result(10)
        yield running
        running.begin(source.stop()).result(10)


def status(node: Served, secret: bytes) -> int:
    with node.client() as client:
        return client.get("/v1/keys/a", headers=bearer(secret)).status_code


def eventually_status(node: Served, secret: bytes, wanted: int) -> None:
    eventually(f"a token gets {wanted}", lambda: status(node, secret) == wanted)


def test_secret_is_replaced_without_a_refused_read(node: Served, tmp_path: Path) -> None:
    """Both keys are accepted while there are two, and a key that is gone is refused, on the same connection too."""
    old = bearer(SECRET)
    with node.client() as client:

        def read() -> int:
            return client.get("/v1/keys/a", headers=old).status_code

        assert read() == 200
        secret_directory(tmp_path / "jwt", SECRET, OTHER_SECRET)
        eventually_status(node, OTHER_SECRET, 200)
        assert read() == 200
        secret_directory(tmp_path / "jwt", OTHER_SECRET)
        (tmp_path / "jwt" / "hmac.next").unlink()
        eventually("the old key is refused", lambda: read() == 401)
        assert status(node, OTHER_SECRET) == 200


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"short"),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"x" * 10_000),
    ],
    ids=["removed", "short", "empty", "large"],
)
def test_secret_that_cannot_be_used_changes_nothing(
    node: Served, tmp_path: Path, damage: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """If the Secret is removed or no key any more, the node keeps its keys and says so, without their content."""
    damage(tmp_path / "jwt" / "hmac")
    written: list[str] = []

    def said() -> bool:
        written.append(capsys.readouterr().err)
        return "auth-secret-unusable" in "".join(written)

    eventually("the node says so", said)
    assert "short" not in "".join(written).replace("shorter", "")
    assert status(node, SECRET) == 200


@pytest.mark.parametrize("content", [None, b"", b"short", b"x" * 31])
def test_node_without_a_key_does_not_start(tmp_path: Path, content: bytes | None) -> None:
    """A node whose Secret has no key that can be used does not start, and names the file."""
    if content is not None:
        (tmp_path / "hmac").write_bytes(content)
    with pytest.raises(SettingsError, match="hmac"):
        SharedSecret(str(tmp_path), "hmac")


def test_refusals_are_lines_and_counts(node: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused request is one line with its reason, without the token, and a metric counts it."""
    with node.client() as client:
        headers = bearer(OTHER_SECRET)
        assert client.get("/v1/keys/a", headers=headers).status_code == 401
        assert client.get("/v1/scan", headers=bearer()).status_code == 403
        metrics = client.get("/metrics", headers=bearer()).text
    assert 'qt_refused_total{reason="token_signature"} 1.0' in metrics
    assert 'qt_refused_total{reason="operation"} 1.0' in metrics
    written = capsys.readouterr().err
    lines = [json.loads(line) for line in written.splitlines() if "audit-refused" in line]
    assert [(line["reason"], line.get("subject")) for line in lines] == [
        ("token_signature", None),
        ("operation", "alice"),
    ]
    assert headers["authorization"].split(".")[2] not in written


def test_audit_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """Many refusals write a bounded number of lines, and a later line says how many are missing."""
    now = 0.0
    audit = Audit(clock=lambda: now)
    for _ in range(LINES_BURST + 50):
        audit.refused("token_signature", "read", "why", key=b"a secret key")
    now = 1.0
    audit.wrote("write", "alice", [b"a secret key"])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == LINES_BURST + 1
    assert lines[-1]["leftOut"] == 50
    assert "a secret key" not in str(lines)
    assert audit.refused_by_reason["token_signature"] == LINES_BURST + 50


def test_time_that_others_take_is_no_time_of_bad_tokens(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy with other work, bad tokens are refused as such: the CPU of their signatures is bounded."""

    def verify_late(*arguments: Any) -> None:
        time.sleep(0.05)
        verify_signature(*arguments)

    monkeypatch.setattr(authenticator, "verify_signature", verify_late)
    assert [status(node, OTHER_SECRET) for _ in range(4)] == [401] * 4
