"""Routes of the console. Each request goes through the engine and leaves one row, but for the static files."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from audit.markup import joined, tag
from engine.admission.console_sessions import form_token
from engine.admission.single_sign_on import RETURN
from engine.errors import ForbiddenError, MaskedReadError, RequestError, UnauthenticatedError
from engine.house import House
from engine.http import request_context
from engine.http.console import PAGES, assets, layout, reviews, signing_in, single_sign_on
from engine.http.console.records import saved
from engine.http.console.visit import Download, Handler, Reply, Role, SeeOther, Sheet, Visit
from engine.models import Client, Trail

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with less a browser would say the origin `null` of our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
}
TOO_LONG = "This page took too long"
SHORTER = "The database or this machine is busy. Load the page again, or ask for a shorter period."
_KEPT = {"Cache-Control": "public, max-age=31536000, immutable"}
_OF_AN_ENGINE = {
    reviews.REVIEWS,
    saved.ADDRESS,
}  # kept and read in its role, which a console that only reads lacks

_Route = Callable[[Request], Awaitable[Response]]


def add_console(app: FastAPI) -> None:
    """Every page's addresses, the static files, signing in and out."""
    for page in PAGES:
        app.get(page.path, include_in_schema=False)(_route(page.show, page.role))
        if page.act:
            app.post(page.path, include_in_schema=False)(
                _route(page.act, max(page.role, page.act_role), is_act=True, only_reads=page.act_only_reads)
            )
    app.get(f"{assets.PREFIX}{{name}}", include_in_schema=False)(asset)
    app.post(signing_in.SIGN_IN, include_in_schema=False)(sign_in)
    app.post(signing_in.BY_PROVIDER, include_in_schema=False)(leave_for_provider)
    app.get(RETURN, include_in_schema=False)(come_back)
    app.post(layout.SIGN_OUT, include_in_schema=False)(sign_out)


async def asset(name: str) -> Response:
    found = assets.content_of(name)
    if found is None:
        raise HTTPException(404)
    content, media_type = found
    return Response(content, media_type=media_type, headers=_KEPT)


async def sign_in(request: Request) -> Response:
    """Exchange a key for a session."""
    try:
        secret, next_path, is_secure = await signing_in.signed_in(request)
    except RequestError as failure:
        if not hasattr(request.state, "is_on_record"):
            raise  # it failed before it reached the engine, so its row is written where others are
        house = request_context.house(request)
        return _rendered(signing_in.sheet(house, signing_in.HOME, failure), failure.status)
    response = RedirectResponse(next_path, HTTPStatus.SEE_OTHER, HEADERS)
    signing_in.set_cookie(response, secret, is_secure=is_secure)
    return response


async def leave_for_provider(request: Request) -> Response:
    """To sign in there. The page leads on, because the policy lets no form of ours lead to another site."""
    begun = await single_sign_on.begun(request)
    if isinstance(begun, RequestError):
        return _rendered(_not_signed_in(request, begun), begun.status)
    response = _rendered(begun.sheet, HTTPStatus.UNAUTHORIZED)
    single_sign_on.set_cookie(response, begun)
    return response


async def come_back(request: Request) -> Response:
    """From the provider. The page leads on: with a redirect the browser would withhold the new cookie, as it came from elsewhere."""
    try:
        sheet, secret, is_secure = await single_sign_on.come_back(request)
    except RequestError as failure:
        if not hasattr(request.state, "is_on_record"):
            raise
        response = _rendered(_not_signed_in(request, failure), failure.status)
    else:
        response = _rendered(sheet, HTTPStatus.OK)
        signing_in.set_cookie(response, secret, is_secure=is_secure)
    response.headers["Referrer-Policy"] = "no-referrer"  # this address has the code
    single_sign_on.forget_cookie(request, response)
    return response


def _not_signed_in(request: Request, failure: RequestError) -> Sheet:
    return signing_in.sheet(request_context.house(request), signing_in.HOME, failure, failure.detail)


async def sign_out(request: Request) -> Response:
    async def end(visit: Visit) -> Reply:
        visit.note(console="signed out")
        await visit.house.console_sessions.end(signing_in.secret_of(request) or "")
        there = single_sign_on.still_signed_in(visit)
        return Sheet("Signed out", joined(there, tag("p", tag("a", "Sign in again", href=signing_in.HOME))))

    response = await _route(end, Role.AUDITOR, is_act=True, is_last=True, only_reads=True)(request)
    if response.status_code == HTTPStatus.OK:
        signing_in.forget_cookie(response)
    return response


def _route(
    handler: Handler, role: Role, *, is_act: bool = False, is_last: bool = False, only_reads: bool = False
) -> _Route:
    async def answer(request: Request) -> Response:
        house, secret = request_context.house(request), signing_in.secret_of(request)
        visits: list[Visit] = []

        async def work(client: Client, trail: Trail) -> Reply:
            visits.append(await _visit(request, client, trail, secret or "", is_act=is_act))
            visits[0].require(role)
            if is_act and house.is_read_only and not only_reads:
                raise ForbiddenError(
                    "This console only reads. Use the console of `affidavit serve` for this."
                )
            reply = await handler(visits[0])
            if isinstance(reply, SeeOther):
                trail.http_status = HTTPStatus.SEE_OTHER.value
            return reply

        asked = replace(
            request_context.asked(request, None, scopes=signing_in.AUDIT),
            end_user=None,
            identify=partial(house.console_sessions.holder, secret),
        )
        try:
            reply = await house.engine.serve(asked, work)
        except UnauthenticatedError as failure:
            return _rendered(signing_in.sheet(house, _address(request)), failure.status)
        except RequestError as failure:
            visit = visits[0] if visits else None
            sheet = (
                _masked(failure, visit)
                if isinstance(failure, MaskedReadError) and visit
                else _failed(failure)
            )
            return _rendered(sheet, failure.status, visit)
        return _response(reply, None if is_last else visits[0])

    return answer


async def _visit(request: Request, client: Client, trail: Trail, secret: str, *, is_act: bool) -> Visit:
    """With the fields of the form, if it comes from a page of ours and from this session."""
    fields = []
    if is_act:
        signing_in.check_origin(request.headers)
        fields = await signing_in.form_fields(request)
        signing_in.check_form(dict(fields), secret)
    house, queries = request_context.house(request), request.query_params.multi_items()
    approved_by = await _approver(house, client, dict(queries).get("approval"))
    return Visit(
        client, Role.of(client), trail, house, form_token(secret), request.url.path,
        request.path_params, dict(queries), queries, dict(fields), fields, approved_by,
    )  # fmt: skip


async def _approver(house: House, client: Client, approval: str | None) -> str | None:
    if not approval:
        return None
    found = [each for each in await house.unmask_requests() if str(each.request_id) == approval]
    return found[0].approved_by if found and found[0].who == client.client_id else None


def _response(reply: Reply, visit: Visit | None) -> Response:
    if isinstance(reply, SeeOther):
        return RedirectResponse(reply.path, HTTPStatus.SEE_OTHER, HEADERS)
    if isinstance(reply, Download):
        named = {"Content-Disposition": f'attachment; filename="{_file_name(reply.name)}"'}
        return Response(reply.content, media_type=reply.media_type, headers=HEADERS | named)
    return _rendered(reply, HTTPStatus.OK, visit)


def _rendered(sheet: Sheet, status: int, visit: Visit | None = None) -> Response:
    return HTMLResponse(layout.page(sheet, visit, _navigation(visit) if visit else ()), status, HEADERS)


def _navigation(visit: Visit) -> list[layout.Entry]:
    return [
        (page.navigation, page.path)
        for page in PAGES
        if page.navigation
        and page.role <= visit.role
        and not (page.path in _OF_AN_ENGINE and visit.house.is_read_only)
    ]


def _failed(failure: RequestError) -> Sheet:
    record = joined(" It is on record as ", tag("code", failure.query_id), ".") if failure.query_id else None
    is_late = failure.status == HTTPStatus.GATEWAY_TIMEOUT  # its own words are for readers
    title, words = (TOO_LONG, SHORTER) if is_late else (failure.title, failure.detail)
    return Sheet(title, tag("p", words, record, class_="alarm", role="alert"))


def _masked(failure: RequestError, visit: Visit) -> Sheet:
    """The same page again, with the reason in its address and so in its row."""
    kept = [
        tag("input", type="hidden", name=name, value=value)
        for name, value in visit.queries
        if name not in {"basis", "approval"}
    ]
    fields = [
        tag("label", "Reason ", tag("input", name="basis", value=visit.query.get("basis"), required=True))
    ]
    if visit.house.access_policy.second_person:
        asking = tag(
            "p", "A second person approves it: ", tag("a", "ask", href="/console/access/requests"), "."
        )
        fields += [tag("label", "Approved request ", tag("input", name="approval")), asking]
    form = tag(
        "form",
        kept,
        fields,
        tag("button", "Show", type="submit"),
        method="get",
        action=visit.path,
        class_="panel",
    )
    return Sheet(failure.title, joined(tag("p", failure.detail, class_="calm", role="alert"), form))


def _address(request: Request) -> str:
    """To come back to after signing in; of a POST what it shows, not what it does."""
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{request.url.path}{query}" if request.method == "GET" else signing_in.HOME


def _file_name(name: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "-" for each in name)
