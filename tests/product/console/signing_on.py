"""Browsers without a screen that sign in to the console at a provider of OpenID Connect."""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from html import unescape
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import urlsplit

import httpx

from engine.admission.single_sign_on import Roles, SingleSignOn
from engine.house import House
from engine.providers.openid import OpenIdProvider
from engine.settings import OidcTable
from tests.product.console.signed_in import HERE, browser_at
from tests.upstreams.openid import Provider, table


def roles_of(given: OidcTable) -> Roles:
    return Roles(given.issuer, *map(frozenset, (given.auditors, given.reviewers, given.leads)))


def with_roles(house: House, roles: Roles | None) -> dict[str, Any]:
    return {"console_sessions": replace(house.console_sessions, roles=roles)}


@asynccontextmanager
async def console_with(
    house: House,
    upstream: Provider,
    base: str = HERE,
    visitor: str = "",
    **other: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at a console that signs in there. Of one address only so many failures a minute get a row each."""
    visitor = visitor or str(IPv4Address(0x0A000000 + secrets.randbelow(1 << 24)))
    given = table(upstream, **{"address": base} | other)
    made = OpenIdProvider(given)
    on = SingleSignOn(made, roles_of(given), given.address)
    parts = {"single_sign_on": on} | with_roles(house, on.roles)
    try:
        async with browser_at(house, base, address=visitor, **parts) as client:
            yield client
    finally:
        await made.close()


async def begin(client: httpx.AsyncClient, next_path: str = "/console") -> httpx.Response:
    return await client.post("/console/sign-in/begin", data={"next": next_path})


async def leave(client: httpx.AsyncClient, next_path: str = "/console") -> str:
    """Begins; the address at the provider."""
    return led_to(await begin(client, next_path))


def led_to(page: httpx.Response) -> str:
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]*)"', page.text)
    assert found, page.text
    return unescape(found[1])


async def answered(address: str) -> str:
    """The provider's answer: the path and the query with which the browser comes back."""
    async with httpx.AsyncClient() as there:
        sent = await there.get(address)
    assert sent.status_code == 303, sent.text
    url = urlsplit(sent.headers["Location"])
    return f"{url.path}?{url.query}"


async def sign_on(client: httpx.AsyncClient, next_path: str = "/console") -> httpx.Response:
    """The whole way; what the browser sees when it is back."""
    back = await answered(await leave(client, next_path))
    return await client.get(back, headers={"Sec-Fetch-Site": "cross-site"})
