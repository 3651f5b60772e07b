"""Token files: hashes only, for their owner only, followed while a server runs."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_ext import masking
from spark_ext.errors import NOTHING_DONE, ConfigurationError
from spark_ext.server.tokens import Token, Tokens, create, generate, hashed, hide, read, revoke


def test_a_token_is_stored_as_a_hash_in_a_file_of_mode_600(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tokens.json"
    token = create(file, "ann", ["read"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in file.read_text()
    assert read(file) == (Token("ann", frozenset({"read"}), hashed(token)),)
    assert masking.mask(f"Bearer {token}") == "Bearer ***"
    found = Tokens(file).find(token)
    assert found is not None and (found.name, found.scopes) == ("ann", frozenset({"read"}))
    for wrong in ("", token[:-1], token[:9], token[:-1] + "!", token + "x", "ann", hashed(token), "\ud800"):
        assert Tokens(file).find(wrong) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "tokens.json"
    create(file, "ann")
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match="others can access") as refused:
        Tokens(file)
    assert "chmod 600" in refused.value.do


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "tokens": [{}]}', "[" * 100_000])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigurationError):
        read(file)
    with pytest.raises(ConfigurationError):
        create(file, "ann")
    assert file.read_text() == content


def test_names_and_scopes_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    create(file, "ann")
    for name, scopes in (("ann", ["read"]), ("", ["read"]), ("a\nb", ["read"]), ("bob", ["write"]), ("bob", [])):
        with pytest.raises(ConfigurationError):
            create(file, name, scopes)
    assert [one.name for one in read(file)] == ["ann"]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Tokens(tmp_path / "none")


def test_what_is_revoked_or_added_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    first = create(file, "ann")
    tokens = Tokens(file)
    second = create(file, "bob", ["control"])
    assert tokens.find(second) is not None
    assert revoke(file, "ann") and not revoke(file, "ann")
    assert tokens.find(first) is None
    file.chmod(0o644)
    assert tokens.find(second) is None
    file.chmod(0o600)
    assert tokens.find(second) is not None


def test_tokens_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: create(file, f"user{number}"), range(16)))
    assert {one.name for one in read(file)} == {f"user{number}" for number in range(16)}


def test_what_looks_like_a_token_is_hidden() -> None:
    token = generate()
    masking.forget()
    assert hide(f"/v1/jobs/{token}/x") == "/v1/jobs/***/x"
    assert hide(NOTHING_DONE) == NOTHING_DONE


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "tokens"
    os.mkfifo(pipe, 0o600)
    for act in (lambda: read(pipe), lambda: create(pipe, "ann"), lambda: revoke(pipe, "ann"), lambda: Tokens(pipe)):
        with pytest.raises(ConfigurationError, match="is not a file of this user"):
            act()
