"""Test that a caller reads the entries of the keys that its token allows, and no others."""

from __future__ import annotations

from pathlib import Path

from tests.app.serve.auth.conftest import AUTH
from tests.support.entries import Record, row_of, view
from tests.support.served import served
from tests.support.tokens import bearer, secret_directory

KEYS = [b"user/a", b"user/alice/", b"user/alice/1", b"user/alice/\0", b"user/alice0", b"user/bob/1"]


def test_entries_of_a_prefix(tmp_path: Path) -> None:
    """A caller whose token allows the keys with a prefix gets their entries, of one key and of all, and 403 for another key."""
    settings = {"auth_secret_dir": secret_directory(tmp_path / "jwt")}
    with served(tmp_path / "node", partitions=1, settings=settings, auth=AUTH, view=view()) as node:
        records = [Record(key, time) for time in range(2) for key in KEYS]
        node.put_slice(*(row_of(offset, record) for offset, record in enumerate(records)))
        alice = bearer(role="user", sub="alice", scope="")
        with node.client() as client:
            own = client.get("/v1/entries/user/alice/1?order=desc", headers=alice)
            every = client.get("/v1/entries", headers=alice)
            refused = client.get("/v1/entries/user/bob/1", headers=alice)
    assert [item["time"][-4:] for item in own.json()["items"]] == ["001Z", "000Z"]
    allowed = ["user/alice/", "user/alice/\0", "user/alice/1"]
    assert [item["key"] for item in every.json()["items"]] == [key for key in allowed for _ in range(2)]
    assert (refused.status_code, "items" in refused.json()) == (403, False)
