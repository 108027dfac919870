"""The clients send a token with every request, and read its file again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from queryable_app.client import (
    AsyncQueryableTopic,
    Forbidden,
    InvalidRequest,
    QueryableTopic,
    Unauthenticated,
)
from queryable_app.commands.group import qtopic as main
from tests.support.served import Served, served
from tests.support.tokens import SECRET_REF, secret_directory, token

RULES = [{"claim": "scope", "contains": "read", "allow": ["read"]}]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("node")
    settings = {"auth_secret_dir": secret_directory(directory / "jwt")}
    with served(directory / "node", settings=settings, auth={"jwt": SECRET_REF, "rules": RULES}) as running:
        running.put(b"a", b'{"n":1}')
        yield running


def test_token_goes_with_each_request(node: Served) -> None:
    """Both clients read with a token, and raise what the node says without one or without a rule."""
    with QueryableTopic(node.url, token=token()) as view:
        row = view.get("a")
        assert row is not None
        assert row.value == {"n": 1}
        with pytest.raises(Forbidden):
            list(view.scan())
    with QueryableTopic(node.url) as view, pytest.raises(Unauthenticated):
        view.get("a")

    async def read() -> object:
        async with AsyncQueryableTopic(node.url, token=token()) as view:
            return await view.get("a")

    assert asyncio.run(read()) is not None


def test_token_file_is_read_again(node: Served, tmp_path: Path) -> None:
    """A token that is replaced in its file is used from the next request on."""
    file = tmp_path / "token"
    file.write_text(token(exp=1) + "\n")
    with QueryableTopic(node.url, token_file=file) as view:
        with pytest.raises(Unauthenticated):
            view.get("a")
        file.write_text(token() + "\n")
        assert view.get("a") is not None


def test_wrong_tokens_are_named(node: Served, tmp_path: Path) -> None:
    """A token that is none, two ways to give one, and a file that is missing are refused by name, without the text."""
    with pytest.raises(InvalidRequest, match="are both given"):
        QueryableTopic(node.url, token="a", token_file="b")
    with pytest.raises(InvalidRequest, match="token: is no token") as refused:
        QueryableTopic(node.url, token="secret text")
    assert "secret text" not in str(refused.value)
    with (
        QueryableTopic(node.url, token_file=tmp_path / "missing") as view,
        pytest.raises(InvalidRequest, match="cannot be read"),
    ):
        view.get("a")


def test_command_takes_a_token(node: Served, tmp_path: Path) -> None:
    """qtopic reads with the token of a file, of the file in the environment, or of the environment."""
    file = tmp_path / "token"
    file.write_text(token())
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--token-file", str(file)], {}),
        ([], {"QTOPIC_TOKEN_FILE": str(file)}),
        ([], {"QTOPIC_TOKEN": token()}),
    ]
    for options, environment in ways:
        result = CliRunner().invoke(main, ["get", "a", "--url", node.url, *options], env=environment)
        assert result.exit_code == 0, result.output
        assert '"n"' in result.output
    assert CliRunner().invoke(main, ["get", "a", "--url", node.url]).exit_code == 2


def test_status_says_that_the_caller_is_refused(node: Served) -> None:
    """Without a token, and with one that does not allow it, the status is a refusal and not a node that does not answer."""
    for given, refusal in ((None, Unauthenticated), (token(), Forbidden)):
        with QueryableTopic(node.url, token=given) as view, pytest.raises(refusal):
            view.status()

    def status(**environment: str) -> Result:
        return CliRunner().invoke(main, ["status", "--url", node.url], env=environment)

    none, narrow = status(), status(QTOPIC_TOKEN=token())
    assert (none.exit_code, narrow.exit_code) == (2, 2)
    assert "--token-file or $QTOPIC_TOKEN" in none.output
    assert "no rule allows admin" in narrow.output
