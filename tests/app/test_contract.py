"""A node's settings, as variables."""

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
def test_settings_come_back(settings: NodeSettings) -> None:
    """A node reads the very settings that whoever starts it has written."""
    assert NodeSettings.from_env(settings.to_env()) == settings


def test_every_variable_has_the_prefix() -> None:
    """Every variable is named QT_ and the field's name in capitals."""
    assert set(small().to_env()) == {"QT_" + f.name.upper() for f in fields(NodeSettings)}


def test_what_is_left_out_has_its_default() -> None:
    """Only what has no default must be set."""
    required = {
        name: text for name, text in small().to_env().items() if getattr(small(), name[3:].lower()) != 8080
    }
    assert "QT_HTTP_PORT" not in required
    assert NodeSettings.from_env(required) == small()


def test_other_variables_are_not_looked_at() -> None:
    """The rest of the environment does not matter."""
    assert NodeSettings.from_env(small().to_env() | {"PATH": "/bin", "QT_UNKNOWN": "x"}) == small()


def test_a_missing_variable_is_named() -> None:
    """A variable that must be set is named when it is not."""
    environ = small().to_env()
    del environ["QT_APPLICATION_ID"]
    with pytest.raises(SettingsError, match="QT_APPLICATION_ID is not set"):
        NodeSettings.from_env(environ)


@pytest.mark.parametrize(
    "text", ["", "eighty", "8.5", "-1", "--5", " 80", "²", "٤", "1_000", "9" * 10_000], ids=ascii
)
def test_a_wrong_number_is_named(text: str) -> None:
    """A variable that is no whole number is named with what it says."""
    with pytest.raises(SettingsError, match="QT_HTTP_PORT must be a whole number of at most 9 digits, not '"):
        NodeSettings.from_env(small().to_env() | {"QT_HTTP_PORT": text})


def test_settings_hold_no_secret() -> None:
    """No field is for a token or password: those that speak of one are paths."""
    secretive = [
        f.name
        for f in fields(NodeSettings)
        if any(word in f.name for word in ("token", "password", "secret"))
    ]
    assert secretive == ["kafka_secret_dir", "internal_token_path"]
