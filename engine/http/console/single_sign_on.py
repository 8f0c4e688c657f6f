"""Signing in at an identity provider (OpenID Connect): away with a secret in a cookie, back with an answer that fits it.

That cookie is SameSite=Lax, because the way back begins at another site; it lasts ten minutes and nothing but this reads it. The session's
cookie is SameSite=Strict as always.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from audit.markup import Markup, tag
from engine.admission.single_sign_on import SECRET_BYTES, Attempt, SingleSignOn
from engine.errors import ForbiddenError, NotFoundError, RequestError, UnauthenticatedError
from engine.http import request_context
from engine.http.console import signing_in
from engine.http.console.visit import Role, Sheet, Visit
from engine.models import PERSON, Client, Trail

SECURE_COOKIE = "__Host-affidavit_sign_in"
LOOPBACK_COOKIE = "affidavit_sign_in"
LASTS_S = 600
NO_ROLE = f"{PERSON}no-role"  # the client of everybody whom the provider knows and the settings do not
NEXT_MAX = 1500  # characters of a path to come back to; a cookie may have 4,096 bytes

_NOT_BEGUN = "This sign-in was not begun in this browser, or more than ten minutes ago, so nobody was signed in. Begin again here."


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in that leaves for the provider."""

    sheet: Sheet
    cookie: str
    is_secure: bool


async def begun(request: Request) -> Begun | RequestError:
    """Its row says that nobody is signed in yet, so a flood of these shares rows like any flood."""
    house, on = request_context.house(request), _single_sign_on(request)
    fields = dict(await signing_in.form_fields(request))
    attempt = Attempt.begin()
    try:
        signing_in.check_origin(request.headers)
        _check_address(request, on)
        address = await on.provider.sign_in_address(attempt.state, attempt.nonce, attempt.challenge)
        said: RequestError = UnauthenticatedError(
            "Nobody is signed in yet: on the way to the identity provider."
        )
    except RequestError as failure:
        address, said = "", failure
    recorded = await house.engine.reject(request_context.asked(request, None), said)
    if not address or recorded is not said:
        return recorded
    host = urlsplit(address).netloc
    sheet = Sheet("Sign in", tag("p", tag("a", "Go on to ", host, href=address)), leads_to=address)
    return Begun(sheet, _cookie_of(attempt, fields.get("next", "")), _is_secure(on))


async def come_back(request: Request) -> tuple[Sheet, str, bool]:
    """The page that leads on, the secret of the new session, and whether its cookie must be Secure. Raises if nobody gets in."""
    house, on = request_context.house(request), _single_sign_on(request)
    attempt, next_path = _begun_here(request)
    sessions: list[str] = []

    async def identify() -> Client:
        begun_here, answer = _answer(request, attempt)
        person = await on.provider.identity(answer, begun_here.verifier, begun_here.nonce)
        if not on.roles.scopes(person.groups):
            return Client(NO_ROLE, None, frozenset(), person=replace(person, groups=()))
        secret, client = await house.console_sessions.begin_of_person(person, begun_here)
        sessions.append(secret)
        return client

    async def serve(client: Client, trail: Trail) -> None:
        if not sessions:
            raise ForbiddenError(
                f"{_name(on)} knows you, but none of your groups there has a role in this console. Ask whoever runs it to give"
                " one a role, or sign in with an API key."
            )
        trail.details = {"console": "signed in", "role": Role.of(client).word, "issuer": on.roles.issuer}

    asked = request_context.asked(request, None, scopes=frozenset())
    await house.engine.serve(replace(asked, end_user=None, identify=identify), serve)
    sheet = Sheet("Signed in", tag("p", tag("a", "Go on to the console", href=next_path)), leads_to=next_path)
    return sheet, sessions[0], _is_secure(on)


def set_cookie(response: Response, sign_in: Begun) -> None:
    if sign_in.is_secure:
        response.set_cookie(
            SECURE_COOKIE, sign_in.cookie, LASTS_S, path="/", secure=True, httponly=True, samesite="lax"
        )
    else:
        response.set_cookie(
            LOOPBACK_COOKIE, sign_in.cookie, LASTS_S, path=signing_in.SIGN_IN, httponly=True, samesite="lax"
        )


def forget_cookie(request: Request, response: Response) -> None:
    """Once its answer has come, whatever that says. An answer of another sign-in does not end this one."""
    try:
        _answer(request, _begun_here(request)[0])
    except UnauthenticatedError:
        return
    response.delete_cookie(SECURE_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
    response.delete_cookie(LOOPBACK_COOKIE, path=signing_in.SIGN_IN, httponly=True, samesite="lax")


def still_signed_in(visit: Visit) -> Markup | None:
    """What our own signing out does not end."""
    on = visit.house.single_sign_on
    if on is None or visit.client.person is None:
        return None
    return tag(
        "p", f"You are still signed in at {_name(on)}: sign out there too, if others use this browser."
    )


def _single_sign_on(request: Request) -> SingleSignOn:
    on = request_context.house(request).single_sign_on
    if on is None:
        raise NotFoundError
    return on


def _check_address(request: Request, on: SingleSignOn) -> None:
    """The cookie would be of another host than the one where the browser comes back."""
    if request.headers.get("Origin", on.address) != on.address:
        raise ForbiddenError(f"To sign in at {_name(on)}, open the console at {on.address}{signing_in.HOME}.")


def _answer(request: Request, attempt: Attempt | None) -> tuple[Attempt, dict[str, str]]:
    """The provider's answer, if it is for the sign-in that this browser has begun; each value is there once."""
    items = request.query_params.multi_items()
    answer = dict(items)
    is_ours = attempt and hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode())
    if attempt is None or not is_ours or len(answer) != len(items):
        raise UnauthenticatedError(_NOT_BEGUN)
    return attempt, answer


def _begun_here(request: Request) -> tuple[Attempt | None, str]:
    """The sign-in that this browser has begun, and the path to come back to."""
    cookie = signing_in.secret_of(request, SECURE_COOKIE, LOOPBACK_COOKIE) or ""
    secret, _, path = cookie.partition(".")
    try:
        next_path = urlsafe_b64decode(path).decode()
    except ValueError:
        next_path = ""
    return Attempt(secret) if len(secret) >= SECRET_BYTES else None, signing_in.ours(next_path)


def _cookie_of(attempt: Attempt, next_path: str) -> str:
    path = signing_in.ours(next_path) if len(next_path) <= NEXT_MAX else signing_in.HOME
    return f"{attempt.secret}.{urlsafe_b64encode(path.encode()).decode()}"


def _is_secure(on: SingleSignOn) -> bool:
    return on.address.startswith("https://")


def _name(on: SingleSignOn) -> str:
    return urlsplit(on.roles.issuer).netloc
