"""Our side of OpenID Connect against a provider over real HTTP: what counts as a token, and what a provider that lies or fails can do.

Whose answer it is, and what the console makes of a person: tests/product/console/test_single_sign_on.py.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from engine.admission.single_sign_on import Attempt
from engine.errors import IdentityProviderError, UnauthenticatedError
from engine.models import Identity
from engine.providers.openid import FAILED_FOR_S, KEPT_S, LOOK_AGAIN_S, OpenIdProvider
from tests.upstreams.openid import (
    AUTHORIZE,
    DISCOVERY,
    KEYS,
    TOKEN,
    Provider,
    Signer,
    coded,
    provider,
    table,
)

HUNG_S = 60


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Ours:
    """What the console signs in with."""

    made: OpenIdProvider
    clock: Clock
    attempt: Attempt = field(default_factory=Attempt.begin)

    async def address(self) -> str:
        asked = self.attempt
        return await self.made.sign_in_address(asked.state, asked.nonce, asked.challenge)

    async def answer(self) -> dict[str, str]:
        async with httpx.AsyncClient() as browser:
            sent = await browser.get(await self.address())
        return dict(parse_qsl(urlsplit(sent.headers["Location"]).query))

    async def sign_in(self, **changed: str | None) -> Identity:
        answer = {
            name: value for name, value in ((await self.answer()) | changed).items() if value is not None
        }
        return await self.made.identity(answer, self.attempt.verifier, self.attempt.nonce)

    async def fails(self, **changed: str | None) -> str:
        """The cause for the record."""
        with pytest.raises(IdentityProviderError) as failure:
            await self.sign_in(**changed)
        assert failure.value.upstream
        return failure.value.upstream


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture
async def new(anyio_backend: str, upstream: Provider) -> AsyncIterator[Callable[..., Ours]]:
    made: list[OpenIdProvider] = []

    def one(**given: Any) -> Ours:
        clock = Clock()
        made.append(OpenIdProvider(table(upstream, **given), clock))
        return Ours(made[-1], clock)

    yield one
    for each in made:
        await each.close()


@pytest.fixture
def ours(new: Callable[..., Ours]) -> Ours:
    return new()


# --- What counts


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_each_allowed_algorithm_counts(
    ours: Ours, upstream: Provider, algorithm: str
) -> None:
    upstream.signer = Signer("k", algorithm)
    assert await ours.sign_in() == Identity(upstream.issuer, "alice", ("log-readers",))


@pytest.mark.parametrize("methods", [["client_secret_basic"], ["client_secret_post"], []])
async def test_the_client_says_its_secret_as_the_provider_wants_it(
    ours: Ours, upstream: Provider, methods: list[str]
) -> None:
    upstream.metadata = {"token_endpoint_auth_methods_supported": methods}
    assert (await ours.sign_in()).subject == "alice"
    (given,) = (given for path, given in upstream.asked if path == TOKEN)
    assert ("client_secret" in given) == (methods == ["client_secret_post"])


async def test_a_public_client_has_pkce_alone(new: Callable[..., Ours], upstream: Provider) -> None:
    upstream.secret = ""
    assert (await new().sign_in()).subject == "alice"


async def test_a_secret_in_a_file_is_read_each_time(
    new: Callable[..., Ours], upstream: Provider, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    ours = new(client_secret_file=str(file))
    assert "cannot be read" in await ours.fails()
    file.write_text("of yesterday\n")
    assert await ours.fails() == "token endpoint: status 401, invalid_client"
    file.write_text(f"{upstream.secret}\n")
    assert (await ours.sign_in()).subject == "alice"


async def test_a_claim_of_another_name_can_have_the_groups(
    new: Callable[..., Ours], upstream: Provider
) -> None:
    upstream.person = {"sub": "alice", "https://example.org/roles": ["log-leads"], "groups": []}
    assert (await new(role_claim="https://example.org/roles").sign_in()).groups == ("log-leads",)


async def test_what_an_authorization_address_asks_already_stays(
    new: Callable[..., Ours], upstream: Provider
) -> None:
    upstream.metadata = {"authorization_endpoint": f"{upstream.issuer}{AUTHORIZE}?tenant=7"}
    address = await new(scopes=("groups", "openid")).address()
    assert "?tenant=7&response_type=code&" in address
    assert parse_qs(urlsplit(address).query)["scope"] == ["openid groups"]


async def test_a_token_for_several_clients_counts_if_this_one_asked_for_it(
    ours: Ours, upstream: Provider
) -> None:
    upstream.claims = {"aud": ["another console", upstream.client_id], "azp": upstream.client_id}
    assert (await ours.sign_in()).subject == "alice"


async def test_a_provider_that_does_not_name_itself_in_its_answer_need_not(
    ours: Ours, upstream: Provider
) -> None:
    upstream.metadata = {"authorization_response_iss_parameter_supported": None}
    assert (await ours.sign_in(iss=None)).subject == "alice"


@pytest.mark.parametrize("subject", ["", "x" * 256, "a\x00b", "a\nb", "\u202e", "\ud83d"])
async def test_a_subject_that_is_no_name_is_refused(ours: Ours, upstream: Provider, subject: str) -> None:
    upstream.person["sub"] = subject
    assert await ours.fails() == "id_token: its subject is no name"


# Seen red with the comparison of `iss` left out.
@pytest.mark.parametrize("issuer", ["https://evil.example", "", None])
async def test_the_code_of_another_issuer_is_not_sent_to_this_one(
    ours: Ours, upstream: Provider, issuer: str | None
) -> None:
    with pytest.raises(UnauthenticatedError):
        await ours.sign_in(iss=issuer)
    assert upstream.count(TOKEN) == 0


# --- Forged tokens


def hs256_with_the_public_key(upstream: Provider) -> None:
    upstream.header = {"alg": "HS256"}
    upstream.forge = lambda signed: hmac.digest(upstream.signer.pem(), signed, sha256)


def hs256_with_the_clients_secret(upstream: Provider) -> None:
    upstream.header = {"alg": "HS256"}
    upstream.forge = lambda signed: hmac.digest(upstream.secret.encode(), signed, sha256)


def hs256_with_a_key_of_the_set(upstream: Provider) -> None:
    secret = secrets.token_bytes(32)
    upstream.keys = [{"kty": "oct", "k": coded(secret), "kid": "first", "alg": "HS256"}]
    upstream.header = {"alg": "HS256"}
    upstream.forge = lambda signed: hmac.digest(secret, signed, sha256)


def unsigned(upstream: Provider) -> None:
    upstream.header, upstream.forge = {"alg": "none"}, lambda _: b""


def unsigned_in_capitals(upstream: Provider) -> None:
    upstream.header, upstream.forge = {"alg": "NoNe", "kid": None}, lambda _: b""


def signed_by_nobody(upstream: Provider) -> None:
    upstream.forge = lambda _: b"\x00" * 64


def signed_with_a_key_in_its_own_head(upstream: Provider) -> None:
    other = Signer("first", "ES256")
    upstream.header, upstream.forge = {"jwk": other.jwk()}, other.sign


def signed_with_another_key_of_the_same_name(upstream: Provider) -> None:
    upstream.forge = Signer("first", "ES256").sign


def signed_with_a_key_for_encryption(upstream: Provider) -> None:
    upstream.keys = [upstream.signer.jwk() | {"use": "enc"}]


def signed_with_a_key_for_another_algorithm(upstream: Provider) -> None:
    upstream.keys = [upstream.signer.jwk() | {"alg": "PS256"}]


def one_of_two_keys_of_one_name(upstream: Provider) -> None:
    upstream.keys = [upstream.signer.jwk(), Signer("first", "ES256").jwk()]


def signed_with_a_key_that_is_too_short(upstream: Provider) -> None:
    upstream.signer = Signer("first", private=rsa.generate_private_key(65537, 1024))


def an_algorithm_that_is_not_of_our_list(upstream: Provider) -> None:
    upstream.header = {"alg": "RS512"}


FORGERIES = (
    hs256_with_the_public_key, hs256_with_the_clients_secret, hs256_with_a_key_of_the_set, unsigned, unsigned_in_capitals, signed_by_nobody,
    signed_with_a_key_in_its_own_head, signed_with_another_key_of_the_same_name, signed_with_a_key_for_encryption,
    signed_with_a_key_for_another_algorithm, one_of_two_keys_of_one_name, signed_with_a_key_that_is_too_short,
    an_algorithm_that_is_not_of_our_list,
)  # fmt: skip


# Seen red, each with its own check left out: the signature, the use of a key, its length, that its name is of one alone.
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
async def test_a_token_that_the_provider_did_not_sign_signs_nobody_in(
    ours: Ours, upstream: Provider, forge: Any
) -> None:
    forge(upstream)
    assert (await ours.fails()).startswith("id_token: ")
    assert upstream.tokens


# Seen red, each with its own check left out: issuer, audience, azp, a leeway of years, nonce, age.
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "another console"},
        {"aud": []},
        {"aud": None},
        {"aud": ["the console", "another console"]},
        {"aud": ["the console", "another console"], "azp": "another console"},
        {"azp": "another console"},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"exp": "never"},
        {"iat": 1_700_000_000},
        {"iat": 4_000_000_000},
        {"iat": None},
        {"nbf": 4_000_000_000},
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"nonce": 1},
        {"sub": None},
        {"sub": 7},
    ],
    ids=str,
)
async def test_a_token_for_somebody_else_or_another_time_signs_nobody_in(
    ours: Ours, upstream: Provider, claims: dict[str, Any]
) -> None:
    upstream.claims = claims
    assert (await ours.fails()).startswith("id_token: ")
    assert upstream.tokens


# --- Keys that change, and a provider that fails


async def test_a_new_key_of_the_provider_is_found_within_the_hour(ours: Ours, upstream: Provider) -> None:
    await ours.sign_in()
    upstream.signer = Signer("second", "EdDSA")
    ours.clock.now_s += LOOK_AGAIN_S
    assert (await ours.sign_in()).subject == "alice"
    assert (upstream.count(KEYS), upstream.count(DISCOVERY)) == (2, 1)


async def test_a_key_that_the_provider_has_dropped_does_not_count_after_an_hour(
    ours: Ours, upstream: Provider
) -> None:
    await ours.sign_in()
    upstream.keys = [Signer("second", "ES256").jwk()]
    ours.clock.now_s += KEPT_S
    assert await ours.fails() == "id_token: the provider has no such key"


# Seen red with the keys asked for again whenever one is unknown.
async def test_tokens_with_unknown_keys_do_not_make_us_flood_the_provider(
    ours: Ours, upstream: Provider
) -> None:
    await ours.sign_in()
    for number in range(20):
        upstream.header = {"kid": f"unknown {number}"}
        await ours.fails()
    assert upstream.count(KEYS) == 1
    ours.clock.now_s += LOOK_AGAIN_S
    for _ in range(5):
        await ours.fails()
    assert upstream.count(KEYS) == 2


# Seen red with a document that failed asked for again each time.
@pytest.mark.parametrize("path", [DISCOVERY, KEYS])
async def test_a_provider_that_is_down_is_not_asked_by_everybody(
    ours: Ours, upstream: Provider, path: str
) -> None:
    back = await ours.answer()
    ours.clock.now_s += KEPT_S
    upstream.answers[path] = (503, "text/plain", b"later")
    before = upstream.count(path)
    for _ in range(10):
        with pytest.raises(IdentityProviderError):
            await ours.made.identity(back, ours.attempt.verifier, ours.attempt.nonce)
        upstream.takes_used_codes = True
    assert upstream.count(path) == before + 1
    del upstream.answers[path]
    ours.clock.now_s += FAILED_FOR_S
    assert (await ours.sign_in()).subject == "alice"


async def test_many_who_come_at_once_ask_for_the_documents_once(ours: Ours, upstream: Provider) -> None:
    await asyncio.gather(*(ours.address() for _ in range(20)))
    assert upstream.count(DISCOVERY) == 1


NONSENSE = {
    "HTML": (200, "text/html", b"<!doctype html><h1>of a proxy</h1>"),
    "status 500": (500, "application/json", b"{}"),
    "a redirect": (302, "application/json", b'{"id_token": "x"}'),
    "an empty body": (200, "application/json", b""),
    "a list": (200, "application/json", b"[]"),
    "null": (200, "application/json", b"null"),
    "no UTF-8": (200, "application/json", b'{"id_token": "\xff"}'),
    "deep": (200, "application/json", b"[" * 100_000),
    "too long": (200, "application/json", b'{"keys": [' + b" " * 300_000 + b"]}"),
    "other members": (200, "application/json", b'{"id_token": 7, "keys": 7, "issuer": 7}'),
    "half a token": (200, "application/json", b'{"id_token": "a.b", "keys": [7, {}, null]}'),
}


@pytest.mark.parametrize("path", [DISCOVERY, KEYS, TOKEN])
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
async def test_nonsense_is_a_failure_of_the_provider(
    ours: Ours, upstream: Provider, path: str, nonsense: Any
) -> None:
    upstream.answers[path] = nonsense
    await ours.fails()


@pytest.mark.parametrize("path", [DISCOVERY, KEYS, TOKEN])
async def test_a_provider_that_hangs_is_given_up(
    new: Callable[..., Ours], upstream: Provider, path: str
) -> None:
    upstream.hangs = {path}
    async with asyncio.timeout(HUNG_S):
        assert await new(timeout_s=0.3).fails() == "no answer within 0.3 s"


# Seen red with any address taken, and with the issuer not compared.
@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"token_endpoint": "file:///etc/passwd"},
        {"jwks_uri": 7},
        {"code_challenge_methods_supported": ["plain"]},
        {"code_challenge_methods_supported": None},
    ],
    ids=str,
)
async def test_a_discovery_document_that_lies_leads_nowhere(
    ours: Ours, upstream: Provider, metadata: dict[str, Any]
) -> None:
    upstream.metadata = metadata
    with pytest.raises(IdentityProviderError):
        await ours.address()


@pytest.mark.parametrize("error", ["server_error", "<b>canary</b>", "x" * 50, ""])
async def test_an_error_is_repeated_only_if_it_is_a_code(ours: Ours, error: str) -> None:
    assert "canary" not in await ours.fails(error=error, error_description="canary")
