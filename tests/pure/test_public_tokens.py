"""Public tokens: what they say is what was signed, and for its minutes only."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from audit.proof.keys import SigningKey
from engine.admission.end_user import visitor
from engine.admission.public_tokens import PREFIX, PublicToken, PublicTokens, check
from engine.errors import ExpiredTokenError, ForbiddenError
from engine.models import Client

NOW = datetime(2026, 1, 15, 10, 30, tzinfo=UTC)
SITE = "https://book.example.org"
HOLDER = Client("site", "0011223344", frozenset({"ask"}))


ONE, OTHER = PublicTokens(b"one".__add__), PublicTokens(b"other".__add__)
TEXT, TOKEN = ONE.make("0011223344", SITE, "physical-ai", NOW, 300)


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_a_token_says_what_it_was_made_for() -> None:
    assert (
        ONE.read(TEXT) == TOKEN == PublicToken("0011223344", SITE, "physical-ai", int(NOW.timestamp()) + 300)
    )


def test_engines_with_one_signing_key_accept_each_others_tokens_and_others_do_not() -> None:
    assert PublicTokens(b"one".__add__).read(TEXT) == TOKEN
    assert OTHER.read(TEXT) is None


# Seen red without the comparison of the MAC.
def test_a_token_that_was_altered_anywhere_is_none() -> None:
    for place in range(len(TEXT)):
        for put in ("", "A", "B", ".", "=", "\x00", "é"):
            altered = TEXT[:place] + put + TEXT[place + 1 :]
            assert altered == TEXT or ONE.read(altered) is None, altered


@pytest.mark.parametrize(
    "claim", [{"book_id": "another"}, {"origin": "https://evil.example"}, {"expires_s": 9_999_999_999}, {"key_id": "x"}]
)  # fmt: skip
def test_other_claims_under_the_same_mac_are_none(claim: dict[str, object]) -> None:
    _, _, mac = TEXT.partition(".")
    said = {"key_id": TOKEN.key_id, "origin": SITE, "book_id": TOKEN.book_id, "expires_s": TOKEN.expires_s}
    assert ONE.read(f"{PREFIX}{encoded(json.dumps(said | claim).encode())}.{mac}") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        PREFIX,
        f"{PREFIX}.",
        "aff_0011",
        TEXT.removeprefix(PREFIX),
        TEXT + TEXT,
        TEXT + "\n",
        "afp_" * 1000,
    ],
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert ONE.read(text) is None


def test_a_token_counts_until_its_second_and_not_longer() -> None:
    last = TOKEN.expires_at - timedelta(microseconds=1)
    check(TOKEN, HOLDER, frozenset({SITE}), last)
    with pytest.raises(ExpiredTokenError):
        check(TOKEN, HOLDER, frozenset({SITE}), TOKEN.expires_at)


@pytest.mark.parametrize(
    ("holder", "origins"),
    [
        (HOLDER, frozenset[str]()),
        (HOLDER, frozenset({"https://other.example"})),
        (Client("site", "1", frozenset({"audit"})), frozenset({SITE})),
        (Client("site", "1", frozenset({"ask"}), books=frozenset({"another"})), frozenset({SITE})),
    ],
)
def test_what_was_taken_from_the_site_or_the_key_is_taken_from_the_token(
    holder: Client, origins: frozenset[str]
) -> None:
    with pytest.raises(ForbiddenError):
        check(TOKEN, holder, origins, NOW)


def test_the_signing_key_gives_the_same_secret_in_every_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file = tmp_path_factory.mktemp("keys") / "signing.key"
    SigningKey.ensured(file)
    assert PublicTokens(SigningKey.load(file).sign).read(
        PublicTokens(SigningKey.load(file).sign).make("1", SITE, "b", NOW, 9)[0]
    )


def test_visitors_of_one_ipv6_network_are_one() -> None:
    assert visitor("2001:db8:1:2::9").name == visitor("2001:db8:1:2:ffff::").name == "anon:2001:db8:1:2::"
    assert visitor("203.0.113.9").name == "anon:203.0.113.9"
