"""Compare docs/reference.md with the CRD."""

from __future__ import annotations

from tests.support.made_pages import REFERENCE, reference


def test_the_reference_is_up_to_date() -> None:
    """`make docs` changes nothing."""
    assert REFERENCE.read_text() == reference(), "run: make docs"


def test_every_field_says_what_a_change_does() -> None:
    """Each field below `spec` has a class of change, unless its parts differ."""
    spec = reference().partition("## spec")[2].partition("## status")[0]
    rows = [line.split(" | ") for line in spec.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row[0] for row in rows if row[3] not in ("patch", "roll", "revision", "reject")] == []
