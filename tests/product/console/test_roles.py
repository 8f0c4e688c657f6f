"""Each role sees and sends what is its own, and nothing of the next one's."""

import re
from uuid import uuid4

import pytest

from engine.house import House
from engine.http.console import PAGES
from engine.http.console.visit import ConsolePage, Role
from engine.storage.database import Database
from tests.conftest import Records
from tests.product.console.signed_in import form_token_in, key_of, signed_in

SCOPES = {Role.AUDITOR: ["audit"], Role.REVIEWER: ["audit", "review"], Role.LEAD: ["audit", "lead"]}
FOR_MORE = [page for page in PAGES if page.role > Role.AUDITOR or (page.act and page.act_role > Role.AUDITOR)]


def filled_in(page: ConsolePage) -> str:
    return re.sub(r"\{[^}]*\}", str(uuid4()), page.path)


# Seen red with `require` left out of the route.
@pytest.mark.parametrize("page", FOR_MORE, ids=lambda page: page.path)
@pytest.mark.parametrize("role", [Role.AUDITOR, Role.REVIEWER])
async def test_who_has_too_little_is_refused_and_on_record(
    house: House, database: Database, records: Records, page: ConsolePage, role: Role
) -> None:
    async with signed_in(house, await key_of(database, *SCOPES[role])) as client:
        token = form_token_in((await client.get("/console")).text)
        seen = await client.get(filled_in(page), headers={"X-Request-ID": (looked := str(uuid4()))})
        sent = await client.post(
            filled_in(page), data={"form_token": token}, headers={"X-Request-ID": (acted := str(uuid4()))}
        )
    if page.role > role:
        assert seen.status_code == 403
        assert [row["http_status"] for row in records.where("request_id = %s", looked)] == [403]
    if page.act and max(page.role, page.act_role) > role:
        assert sent.status_code == 403
        assert [row["http_status"] for row in records.where("request_id = %s", acted)] == [403]


async def test_the_navigation_offers_only_what_the_role_may_see(house: House, database: Database) -> None:
    for role, scopes in SCOPES.items():
        async with signed_in(house, await key_of(database, *scopes)) as client:
            page = (await client.get("/console")).text
        offered = [page.navigation for page in PAGES if page.navigation and page.role <= role]
        assert re.findall(r"<li><a href=\"[^\"]*\"[^>]*>([^<]*)</a></li>", page) == offered


async def test_nobody_names_a_role_for_himself(house: House, database: Database) -> None:
    async with signed_in(house, await key_of(database)) as client:
        for more in ({"role": "lead"}, {"scope": "audit,lead"}):
            said = await client.get("/console", params=more, headers={"X-Role": "lead"})
            assert '<span class="role">auditor</span>' in said.text
