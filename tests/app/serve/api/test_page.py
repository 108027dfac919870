"""Test the node page in a browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from queryable_app.wire.serde import key_codec
from tests.support.entries import Record, row_of, view
from tests.support.served import served

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="a browser is missing: chromium, or google-chrome")


def rows_shown(url: str, profile: Path) -> list[list[str]]:
    """Return the cells of each row that a page shows after four seconds of its own time."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    options = ["--no-proxy-server", "--virtual-time-budget=4000", "--dump-dom", url]
    page = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=120)
    (table,) = re.findall(r'<tbody id="rows">(.*?)</tbody>', page.stdout, re.DOTALL)
    return [
        [html.unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    ]


def test_rows_of_numeric_keys_have_all_digits(tmp_path: Path) -> None:
    """A link to rows shows those that match, with numeric keys and values as they are."""
    codec = key_codec("long")
    with served(tmp_path / "node", partitions=1, key={"format": "long"}) as node:
        for number in (9007199254740993, -5):
            node.put(codec.from_json(number), b'{"n": %d}' % number)
        shown = rows_shown(f"{node.url}/?where={quote('n > 0')}", tmp_path / "profile")
    assert shown == [["9007199254740993", '{"n":9007199254740993}', "0"]]


def test_entries_have_their_times(tmp_path: Path) -> None:
    """The rows of a view of entries are shown with their key and time."""
    with served(tmp_path / "node", partitions=1, view=view()) as node:
        node.put_slice(row_of(0, Record(b"a", 0, b'{"n": 1}')))
        shown = rows_shown(f"{node.url}/?where=", tmp_path / "profile")
    assert shown == [["a 1970-01-01T00:00:00.000Z", '{"n":1}', "0"]]
