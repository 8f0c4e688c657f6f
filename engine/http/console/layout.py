"""The frame of every page: navigation, who is signed in, the content, the foot. It works without JavaScript (pure)."""

from collections.abc import Sequence
from typing import Any

from audit.markup import Markup, joined, tag
from engine.http.console import assets
from engine.http.console.visit import Sheet, Visit

TOKEN_FIELD = "form_token"  # noqa: S105  the name of a field
HOME, SIGN_OUT = "/console", "/console/sign-out"

Entry = tuple[str, str]  # a word of the navigation, and its address

_FOOT = "Each page that you open here leaves a record in the log, with your name or your key's client and, where it shows what people wrote, what was shown."
_FOOT_LOCAL = "This console only reads. What it shows of what people wrote is put on record first; its other pages leave no record."


def page(sheet: Sheet, visit: Visit | None = None, navigation: Sequence[Entry] = ()) -> str:
    """The whole document."""
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="robots", content="noindex"),
        tag("meta", http_equiv="refresh", content=sheet.refresh_s) if sheet.refresh_s else None,
        tag("meta", http_equiv="refresh", content=f"0; url={sheet.leads_to}") if sheet.leads_to else None,
        tag("title", sheet.title, " · Affidavit"),
        tag("link", rel="icon", href=assets.address_of("seal.svg")),
        [
            tag("link", rel="stylesheet", href=assets.address_of(name))
            for name in ("chart.css", "console.css")
        ],
        [tag("script", src=address, type="module") for address in sheet.scripts],
    )
    body = (
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _top(visit, navigation),
        tag("main", tag("h1", sheet.title), sheet.body, id="content", tabindex="-1"),
        tag(
            "footer",
            tag("p", _FOOT_LOCAL if visit and visit.house.is_read_only else _FOOT),
            class_="foot small",
        ),
    )
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


def form(visit: Visit, action: str, *children: object, **attributes: Any) -> Markup:
    """A form that changes something: it carries the session's token. For a search use an ordinary form with `get`."""
    token = tag("input", type="hidden", name=TOKEN_FIELD, value=visit.form_token)
    return tag("form", token, *children, method="post", action=action, **attributes)


def said_by_us(text: str) -> Markup:
    """Words of our own, with commands in `backticks`."""
    return joined([tag("code", part) if number % 2 else part for number, part in enumerate(text.split("`"))])


def figure(name: str, caption: object, drawn: Markup) -> Markup:
    """A picture, which scrolls within itself like a table."""
    inner = tag("div", drawn, class_="table", tabindex="0", role="region", aria_label=name)
    return tag("figure", tag("figcaption", caption), inner)


def _top(visit: Visit | None, navigation: Sequence[Entry]) -> Markup:
    name = tag("a", tag("span", class_="seal"), "Affidavit", href=HOME, class_="name")
    if visit is None:
        return tag("header", name, class_="top")
    return tag("header", name, _navigation(visit, navigation), _signed_in(visit), class_="top")


def _navigation(visit: Visit, entries: Sequence[Entry]) -> Markup:
    here = max((path for _, path in entries if _is_within(visit.path, path)), key=len, default="")
    links = [
        tag("li", tag("a", word, href=path, aria_current="page" if path == here else None))
        for word, path in entries
    ]
    return tag("nav", tag("ul", links), aria_label="Console")


def _is_within(path: str, of: str) -> bool:
    return path == of or (of != HOME and path.startswith(f"{of}/"))


def _signed_in(visit: Visit) -> Markup:
    person = visit.client.person
    name = joined(tag("b", person.subject), " ", tag("code", visit.who)) if person else tag("b", visit.who)
    who = tag("span", name, " ", tag("span", visit.role.word, class_="role"))
    return tag(
        "div", who, form(visit, SIGN_OUT, tag("button", "Sign out", type="submit", class_="quiet")), class_="who"
    )  # fmt: skip


def facts(pairs: Sequence[tuple[object, object]]) -> Markup:
    """Names with their values."""
    return tag("dl", [joined(tag("dt", name), tag("dd", value)) for name, value in pairs], class_="facts")
