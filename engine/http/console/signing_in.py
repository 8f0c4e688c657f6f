"""Signing in: an API key with the scope `audit` becomes the cookie of a session. And out. single_sign_on.py does it without a key.

The cookie is HttpOnly and SameSite=Strict; it is `__Host-` and Secure wherever the browser came over https. A POST must come
from a page of ours: `Sec-Fetch-Site` or `Origin` says so, which no other site can forge, and its form has the session's token.
"""

import hmac
import re
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response

from audit.markup import Markup, joined, tag
from engine.admission.console_sessions import form_token
from engine.admission.single_sign_on import SingleSignOn
from engine.errors import BadRequestError, ForbiddenError, RequestError, UnauthenticatedError
from engine.house import House
from engine.http import request_context
from engine.http.console import layout
from engine.http.console.visit import Role, Sheet
from engine.models import Client, Trail

AUDIT = frozenset({"audit"})
SIGN_IN = "/console/sign-in"
BY_PROVIDER = "/console/sign-in/begin"  # where the form leads with which people go to the identity provider
HOME = "/console"
SECURE_COOKIE = "__Host-affidavit_console"
LOOPBACK_COOKIE = "affidavit_console"  # over plain http, which only a browser on this machine may use
FIELDS_MAX = 200
FORM_TYPE = "application/x-www-form-urlencoded"

_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")
_OURS = re.compile(r"/console(?:[/?][^\x00-\x20\\\x7f]*)?", re.ASCII)


async def signed_in(request: Request) -> tuple[str, str, bool]:
    """The secret of a new session, where to go, and whether the cookie must be Secure. Raises if the key is not good enough."""
    house = request_context.house(request)
    fields = dict(await form_fields(request))

    async def serve(client: Client, trail: Trail) -> str:
        check_origin(request.headers)
        check_transport(request.headers)
        if client.books or client.key_id is None:
            raise ForbiddenError("This key is for some books, and the console shows the log of all of them.")
        trail.details = {"console": "signed in", "role": Role.of(client).word}
        trail.http_status = HTTPStatus.SEE_OTHER.value
        return await house.console_sessions.begin(client.key_id)

    asked = request_context.asked(request, f"Bearer {fields.get('key', '')}", scopes=AUDIT)
    secret = await house.engine.serve(replace(asked, end_user=None), serve)
    return secret, ours(fields.get("next", HOME)), not _is_plain_loopback(request.headers)


def ours(path: str) -> str:
    """The path if it is of the console, so that nobody is led elsewhere (open redirect)."""
    return path if _OURS.fullmatch(path) else HOME


def secret_of(request: Request, protected: str = SECURE_COOKIE, plain: str = LOOPBACK_COOKIE) -> str | None:
    """The session's secret. The unprotected cookie counts on this machine alone: elsewhere a neighbour could have set it."""
    if protected in request.cookies:
        return request.cookies[protected]
    is_here = _LOOPBACK.fullmatch(_host_of(f"//{request.headers.get('Host', '')}"))
    return request.cookies.get(plain) if is_here else None


def set_cookie(response: Response, secret: str, *, is_secure: bool) -> None:
    if is_secure:
        response.set_cookie(SECURE_COOKIE, secret, path="/", secure=True, httponly=True, samesite="strict")
    else:
        response.set_cookie(LOOPBACK_COOKIE, secret, path=HOME, httponly=True, samesite="strict")


def forget_cookie(response: Response) -> None:
    response.delete_cookie(SECURE_COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    response.delete_cookie(LOOPBACK_COOKIE, path=HOME, httponly=True, samesite="strict")


def check_origin(headers: Headers) -> None:
    """`ForbiddenError` if the request does not come from a page of ours."""
    fetched = ",".join(headers.getlist("Sec-Fetch-Site"))
    is_ours = fetched == "same-origin" if fetched else _is_from_host(headers)
    if not is_ours:
        raise ForbiddenError(
            "The form was not sent from a page of this console. Open the page here and send it again."
        )


def check_transport(headers: Headers) -> None:
    """A password over plain http would be read on its way. The browser says in `Origin` how it came."""
    if urlsplit(headers.get("Origin", "")).scheme == "http" and not _is_plain_loopback(headers):
        raise ForbiddenError(
            "Open the console over https, or on the machine itself: over plain http the key could be read."
        )


def check_form(fields: dict[str, str], secret: str) -> None:
    """`ForbiddenError` without the session's token (CSRF)."""
    if not hmac.compare_digest(fields.get(layout.TOKEN_FIELD, "").encode(), form_token(secret).encode()):
        raise ForbiddenError("The form is not of this session. Open the page again and send it once more.")


async def form_fields(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, in their order."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise BadRequestError("The console takes forms only.")
    body = await request_context.body(request)
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise BadRequestError("The form cannot be read. Open the page again and send it once more.") from None


def sheet(house: House, next_path: str, failure: RequestError | None = None, words: str = "") -> Sheet:
    """The forms to sign in with. `failure`: of an attempt to, in other words where its own are for something else."""
    is_local = house.is_read_only  # the console of one command, with a code of its own
    said = None if failure is None else tag("p", words or _words(failure), class_="alarm", role="alert")
    next_field = tag("input", type="hidden", name="next", value=ours(next_path))
    hint = joined(
        "An API key with the scope ", tag("code", "audit"), ". ", tag("code", "affidavit keys create --client NAME --scope audit"),
        " makes one; ", tag("code", "audit,review"), " is for reviewers and ", tag("code", "audit,lead"), " for leads.",
    )  # fmt: skip
    if is_local:
        hint = joined("The code that ", tag("code", "affidavit console"), " printed in your terminal.")
    key = tag(
        "input", type="password", id="key", name="key", autocomplete="off", required=True, aria_describedby="key-hint",
        aria_invalid="true" if failure else None,
    )  # fmt: skip
    body = joined(
        said,
        _provider_form(house.single_sign_on, next_field) if house.single_sign_on else None,
        tag(
            "form", next_field,
            tag("label", "Code" if is_local else "API key", for_="key"), key, tag("p", hint, id="key-hint", class_="small"),
            tag("button", "Sign in", type="submit", class_=None if house.single_sign_on else "primary"),
            method="post", action=SIGN_IN, class_="sign-in panel",
        ),
        tag(
            "p", "You followed a link and are signed in? ", tag("a", "Open the page again", href=next_path),
            ": browsers withhold the sign-in from links of other sites.", class_="small",
        ),
    )  # fmt: skip
    return Sheet("Sign in", body)


def _provider_form(on: SingleSignOn, next_field: Markup) -> Markup:
    name = _host_of(on.roles.issuer)
    return tag(
        "form", next_field, tag("button", "Sign in with ", name, type="submit", class_="primary"),
        tag("p", "With your account there, if one of its groups has a role here.", class_="small"),
        method="post", action=BY_PROVIDER, class_="sign-in panel",
    )  # fmt: skip


def _words(failure: RequestError) -> str:
    if isinstance(failure, UnauthenticatedError):
        return "This is not valid: it is unknown, was revoked, or is mistyped."
    return failure.detail


def _is_from_host(headers: Headers) -> bool:
    origin, host = headers.getlist("Origin"), headers.get("Host", "")
    return len(origin) == 1 and bool(host) and urlsplit(origin[0]).netloc.lower() == host.lower()


def _is_plain_loopback(headers: Headers) -> bool:
    origin = headers.get("Origin", "")
    return urlsplit(origin).scheme == "http" and bool(_LOOPBACK.fullmatch(_host_of(origin)))


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
