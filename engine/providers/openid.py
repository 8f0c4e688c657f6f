"""Identity provider: any that speaks OpenID Connect. Authorization code flow with PKCE; the only HTTP is from here to the provider.

An id_token counts if a key of the provider's own set signed it, by an algorithm of our list, for this client, by this issuer,
now, and for this sign-in. Tokens are read and dropped: none is stored, logged or quoted in an error.
"""

import asyncio
import base64
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlencode

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from engine.admission.single_sign_on import RETURN
from engine.errors import IdentityProviderError, RequestError, UnauthenticatedError
from engine.models import Identity
from engine.settings import OidcTable, Settings

LEEWAY_S = 60  # of clocks
ISSUED_WITHIN_S = 600  # a token that is older was not made for this sign-in
KEPT_S = 3600.0  # for so long the provider's documents are not asked for again …
LOOK_AGAIN_S = 60.0  # … but for a key that is not among those known, no oftener than this
FAILED_FOR_S = 5.0  # a document that could not be had is not asked for again, whoever would like that
CONNECTIONS_MAX = 8  # at a time, so that a flood of sign-ins is none at the provider
ANSWER_BYTES_MAX = 262_144
KEYS_MAX = 100
GROUPS_MAX = 1_000
SUBJECT_MAX = 255  # OpenID Connect Core, section 2
RSA_BITS_MIN = 2048
BASIC, POST = "client_secret_basic", "client_secret_post"

_ALGORITHMS = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}
_REQUIRED = ["iss", "sub", "aud", "exp", "iat", "nonce"]
_SAYS_ISSUER = "authorization_response_iss_parameter_supported"  # RFC 9207
_CODE = re.compile(r"[a-z_]{1,40}", re.ASCII)  # an error code of OAuth; anything else is not repeated

Result = TypeVar("Result")
_BEGIN_AGAIN = "Nobody was signed in. Go back to the console and begin again."


def provider(settings: Settings) -> "OpenIdProvider":
    return OpenIdProvider(settings.oidc)


class ProviderKey(NamedTuple):
    """A public key of the provider, for one algorithm."""

    kid: str | None
    algorithm: str
    jwk: jwt.PyJWK


@dataclass(slots=True)
class ProviderDocument(Generic[Result]):
    """A document of the provider, fetched when it is needed, by one request for all who wait for it."""

    read: Callable[[], Awaitable[Result]]  # fetches it, and returns what is kept of it
    monotonic: Callable[[], float]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: Result | None = None
    fetched_at: float = float("-inf")
    failed_at: float = float("-inf")

    async def get(self, fresher_than_s: float = KEPT_S) -> Result:
        async with self.lock:
            now = self.monotonic()
            if self.kept is not None and now - self.fetched_at < fresher_than_s:
                return self.kept
            if now - self.failed_at < FAILED_FOR_S:
                raise _failed("not asked again so soon after a failure")
            self.failed_at = now  # until it is there, also if the request is cancelled
            self.kept = await self.read()
            self.fetched_at, self.failed_at = now, float("-inf")
            return self.kept


class OpenIdProvider:
    def __init__(self, given: OidcTable, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._given = given
        self._return_address = f"{given.address}{RETURN}"
        self._http = httpx.AsyncClient(
            timeout=given.timeout_s, limits=httpx.Limits(max_connections=CONNECTIONS_MAX), follow_redirects=False,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )  # fmt: skip
        self._metadata = ProviderDocument(self._read_metadata, monotonic)
        self._keys = ProviderDocument(self._read_keys, monotonic)

    async def sign_in_address(self, state: str, nonce: str, challenge: str) -> str:
        metadata = await self._within_time(self._metadata.get())
        asked = {
            "response_type": "code", "client_id": self._given.client_id, "redirect_uri": self._return_address,
            "scope": " ".join(dict.fromkeys(["openid", *self._given.scopes])), "state": state, "nonce": nonce,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        address = str(metadata["authorization_endpoint"])
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"

    async def identity(self, answer: Mapping[str, str], verifier: str, nonce: str) -> Identity:
        """One time limit for all that is asked of the provider here."""
        return await self._within_time(self._identity(answer, verifier, nonce))

    async def examine(self) -> str:
        keys = await self._within_time(self._keys.get())
        if not keys:
            raise _failed(f"it has no key for {', '.join(_ALGORITHMS.values())}")
        return f"{self._given.issuer} answers, with {len(keys)} keys"

    async def close(self) -> None:
        await self._http.aclose()

    async def _identity(self, answer: Mapping[str, str], verifier: str, nonce: str) -> Identity:
        metadata = await self._metadata.get()
        self._check_issuer(answer.get("iss"), is_said=metadata.get(_SAYS_ISSUER) is True)
        if "error" in answer or not answer.get("code"):
            raise _said_no(answer.get("error", ""))
        token = await self._redeemed(metadata, answer["code"], verifier)
        claims = await self._claims(token, nonce)
        return Identity(self._given.issuer, _subject(claims), _groups(claims, self._given.role_claim))

    def _check_issuer(self, said: str | None, *, is_said: bool) -> None:
        """RFC 9207: the answer of another provider is not redeemed at this one (mix-up)."""
        if said is None and not is_said:
            return
        if said != self._given.issuer:
            raise UnauthenticatedError(
                f"This answer is not of the identity provider of this console. {_BEGIN_AGAIN}"
            )

    async def _redeemed(self, metadata: Mapping[str, Any], code: str, verifier: str) -> str:
        """The id_token for the code. What else the provider gives is not used."""
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._return_address, "code_verifier": verifier,
        }  # fmt: skip
        methods = metadata.get("token_endpoint_auth_methods_supported", [BASIC])
        secret, headers = self._secret(), {}
        if secret and (BASIC in methods or POST not in methods):
            headers = {"Authorization": _basic(self._given.client_id, secret)}
        else:
            form |= {"client_id": self._given.client_id} | ({"client_secret": secret} if secret else {})
        status, told = await self._asked(
            "token endpoint", "POST", metadata["token_endpoint"], data=form, headers=headers
        )
        if status in {400, 401} and told.get("error") == "invalid_grant":
            raise UnauthenticatedError(
                f"The identity provider does not take this sign-in: it was used before, or took too long. {_BEGIN_AGAIN}"
            )
        token = told.get("id_token")
        if status != httpx.codes.OK or not isinstance(token, str):
            raise _failed(f"token endpoint: status {status}{_named(told.get('error'))}")
        return token

    def _secret(self) -> str:
        """Read each time, because a file may be rotated."""
        if not self._given.client_secret_file:
            return self._given.client_secret.get_secret_value()
        try:
            return Path(self._given.client_secret_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise _failed(f"oidc.client_secret_file cannot be read ({type(failure).__name__})") from None

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(header.get("alg"), header.get("kid"))
            claims = jwt.decode(
                token, key.jwk, algorithms=[key.algorithm], audience=self._given.client_id, issuer=self._given.issuer,
                leeway=LEEWAY_S, options={"require": _REQUIRED},
            )  # fmt: skip
        except jwt.PyJWTError as wrong:
            raise _failed(f"id_token: {type(wrong).__name__}") from None
        self._check_client(claims)
        if not hmac.compare_digest(str(claims["nonce"]).encode(errors="replace"), nonce.encode()):
            raise _failed("id_token: it is of another sign-in")
        if time.time() - claims["iat"] > ISSUED_WITHIN_S + LEEWAY_S:
            raise _failed("id_token: it is too old")
        return claims

    def _check_client(self, claims: Mapping[str, Any]) -> None:
        """A token for several clients says which of them asked for it."""
        is_shared = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if is_shared else self._given.client_id) != self._given.client_id:
            raise _failed("id_token: another client asked for it")

    async def _key(self, algorithm: object, kid: object) -> ProviderKey:
        """An unknown key is looked for again, as providers rotate theirs, but not whenever a token names one."""
        if algorithm not in _ALGORITHMS.values():
            raise _failed("id_token: its algorithm is not allowed")
        found = _chosen(await self._keys.get(), algorithm, kid)
        found = found or _chosen(await self._keys.get(LOOK_AGAIN_S), algorithm, kid)
        if found is None:
            raise _failed("id_token: the provider has no such key")
        return found

    async def _read_metadata(self) -> dict[str, Any]:
        address = f"{self._given.issuer.rstrip('/')}/.well-known/openid-configuration"
        status, told = await self._asked("discovery", "GET", address)
        if status != httpx.codes.OK:
            raise _failed(f"discovery: status {status}")
        if told.get("issuer") != self._given.issuer:
            raise _failed(
                "discovery: it is of another issuer than oidc.issuer, which must be the same to the letter"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not self._is_safe(told.get(name)):
                raise _failed(f"discovery: its {name} is no address with https")
        if "S256" not in told.get("code_challenge_methods_supported", ["S256"]):
            raise _failed("discovery: it does not support PKCE with S256")
        return told

    async def _read_keys(self) -> list[ProviderKey]:
        metadata = await self._metadata.get()
        status, told = await self._asked("keys", "GET", metadata["jwks_uri"])
        if status != httpx.codes.OK or not isinstance(told.get("keys"), list):
            raise _failed(f"keys: status {status}, and no list of keys")
        return [key for jwk in told["keys"][:KEYS_MAX] if (key := _usable(jwk))]

    def _is_safe(self, address: object) -> bool:
        """Plain http only where the issuer itself has it, which only one on this machine may."""
        schemes = ("https://", "http://") if self._given.issuer.startswith("http://") else ("https://",)
        return (
            isinstance(address, str)
            and address.startswith(schemes)
            and address.isprintable()
            and "#" not in address
        )

    async def _asked(
        self, step: str, method: str, address: str, **request: Any
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object. HTML, for instance of a proxy, is no answer."""
        content = bytearray()
        try:
            async with self._http.stream(method, address, **request) as response:
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > ANSWER_BYTES_MAX:
                        raise _failed(f"{step}: the answer is too long")
            told = json.loads(content)
        except (httpx.HTTPError, httpx.InvalidURL) as failure:
            raise _failed(f"{step}: {type(failure).__name__}") from None
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise _failed(f"{step}: status {response.status_code}, and no JSON object")
        return response.status_code, told

    async def _within_time(self, work: Awaitable[Result]) -> Result:
        """Whatever the provider does. Its own words are not repeated: they could quote a code or a token."""
        try:
            async with asyncio.timeout(self._given.timeout_s):
                return await work
        except RequestError:
            raise
        except TimeoutError:
            cause = f"no answer within {self._given.timeout_s} s"
        except Exception as failure:  # noqa: BLE001  a provider that sends nonsense is a failure of the provider
            cause = type(failure).__name__
        raise _failed(cause)


def _failed(cause: str) -> IdentityProviderError:
    """The cause is for the record and for `affidavit doctor`."""
    return IdentityProviderError(upstream=cause)


def _said_no(error: str) -> RequestError:
    """The description in the address is not shown: anybody could have written it."""
    if error == "access_denied":
        return UnauthenticatedError(
            f"The identity provider did not let you in, or you declined. {_BEGIN_AGAIN}"
        )
    return _failed(f"sign-in: it answered without a code{_named(error)}")


def _named(error: object) -> str:
    return f", {error}" if isinstance(error, str) and _CODE.fullmatch(error) else ""


def _basic(client_id: str, secret: str) -> str:
    """RFC 6749, section 2.3.1: both are encoded like a form's before they are put together."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _usable(jwk: object) -> ProviderKey | None:
    """A public key for a signature of our list. One for something else, or for secrets, is passed over."""
    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    algorithm = _ALGORITHMS.get((jwk.get("kty"), jwk.get("crv")))  # type: ignore[arg-type]
    if algorithm is None or jwk.get("alg", algorithm) != algorithm:
        return None
    try:
        read = jwt.PyJWK(jwk, algorithm=algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(read.key, RSAPublicKey) and read.key.key_size < RSA_BITS_MIN:
        return None
    return ProviderKey(jwk.get("kid"), algorithm, read)


def _chosen(keys: Sequence[ProviderKey], algorithm: object, kid: object) -> ProviderKey | None:
    """The one that the token names. If it names none, there may be only one."""
    found = [key for key in keys if key.algorithm == algorithm and kid in {None, key.kid}]
    return found[0] if len(found) == 1 else None


def _subject(claims: Mapping[str, Any]) -> str:
    subject = str(claims["sub"])
    if not 0 < len(subject) <= SUBJECT_MAX or not subject.isprintable():
        raise _failed("id_token: its subject is no name")
    return subject


def _groups(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """One or several; what is no text is no group."""
    value = claims.get(claim)
    listed = value if isinstance(value, list) else [value]
    return tuple(each for each in listed[:GROUPS_MAX] if isinstance(each, str))
