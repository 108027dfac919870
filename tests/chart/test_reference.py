"""Compare docs/reference.md with the CRD."""

from __future__ import annotations

from tests.support.made_pages import REFERENCE, reference


def test_reference_is_up_to_date() -> None:
    """`make docs` changes nothing."""
    assert REFERENCE.read_text() == reference(), "run: make docs"


def test_every_field_has_an_effect_of_change() -> None:
    """Each field below `spec` has one, unless its parts differ."""
    spec = reference().partition("## spec")[2].partition("## status")[0]
    rows = [line.split(" | ") for line in spec.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row[0] for row in rows if row[3] not in ("patch", "roll", "revision", "reject")] == []
