"""Test a node's settings as environment variables."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryable_app.contract import NodeSettings, SettingsError

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SETTINGS = st.builds(
    NodeSettings,
    **{f.name: TEXTS if f.type == "str" else st.integers(0, 999_999_999) for f in fields(NodeSettings)},
)


def small() -> NodeSettings:
    return NodeSettings(
        name="users-r1-0",
        ordinal=0,
        application_id="default.users.r1",
        spec_path="/etc/qt/spec.json",
        bootstrap_servers="kafka:9092",
        advertised_url="http://users-r1-0:8080",
        data_dir="/data",
        run_dir="/run/qt",
        placement_path="/etc/qt/placement.json",
    )


@given(SETTINGS)
def test_settings_survive_the_environment(settings: NodeSettings) -> None:
    """A node reads the settings that the process which starts it wrote."""
    assert NodeSettings.from_env(settings.to_env()) == settings


def test_variable_is_the_field_with_a_prefix() -> None:
    """Every variable is QT_ and the field's name in capitals."""
    assert set(small().to_env()) == {"QT_" + f.name.upper() for f in fields(NodeSettings)}


def test_absent_variable_has_its_default() -> None:
    """Every variable may be absent except those of settings without a default."""
    required = {
        name: text for name, text in small().to_env().items() if getattr(small(), name[3:].lower()) != 8080
    }
    assert "QT_HTTP_PORT" not in required
    assert NodeSettings.from_env(required) == small()


def test_other_variables_are_ignored() -> None:
    """A variable without a field changes nothing."""
    assert NodeSettings.from_env(small().to_env() | {"PATH": "/bin", "QT_UNKNOWN": "x"}) == small()


def test_missing_variable_is_named() -> None:
    """The error names the required variable that is not set."""
    environ = small().to_env()
    del environ["QT_APPLICATION_ID"]
    with pytest.raises(SettingsError, match="QT_APPLICATION_ID is not set"):
        NodeSettings.from_env(environ)


@pytest.mark.parametrize(
    "text", ["", "eighty", "8.5", "-1", "--5", " 80", "²", "٤", "1_000", "9" * 10_000], ids=ascii
)
def test_wrong_number_is_named(text: str) -> None:
    """The error names the variable that is no whole number, and its value."""
    with pytest.raises(SettingsError, match="QT_HTTP_PORT must be a whole number of at most 9 digits, not '"):
        NodeSettings.from_env(small().to_env() | {"QT_HTTP_PORT": text})


def test_settings_hold_no_secret() -> None:
    """No field holds a token or password; fields that name one are paths."""
    secretive = [
        f.name
        for f in fields(NodeSettings)
        if any(word in f.name for word in ("token", "password", "secret"))
    ]
    assert secretive == ["kafka_secret_dir", "internal_token_path"]
