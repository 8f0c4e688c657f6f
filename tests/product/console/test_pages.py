"""Every page of the console in Chromium and in Firefox, light and dark, on a desk and on a phone. Set E2E_SCREENSHOTS for pictures."""

import json
import os
from pathlib import Path

import httpx
import pytest

from engine.http.console import PAGES
from engine.storage.database import Database
from tests.conftest import ROOT, Running
from tests.product.browser import CHROMIUM, FIREFOX
from tests.product.console.signed_in import key_of
from tests.product.docusaurus import PLUGIN, install, run

QUESTIONS = {"answered": "Why do humanoid robots need an IMU?", "refused": "Who wrote Pride and Prejudice?"}


@pytest.mark.campaign
@pytest.mark.parametrize("browser", ["chromium", "firefox"])
async def test_every_page_is_whole_in(browser: str, server: Running, database: Database, key: str) -> None:
    program = {"chromium": CHROMIUM, "firefox": FIREFOX}[browser]
    if program is None:
        pytest.skip(f"no {browser} here: apt-get install {browser}")
    install()
    paths = {page.navigation.lower().replace(" ", "-"): page.path for page in PAGES if page.navigation}
    paths |= {
        "verification": "/console/verification", "report": "/console/reports?pack=change", "search-found": "/console/search?text=IMU",
        "charts-year": "/console/charts?from=2026-01-01&to=2027-01-01",
    }  # fmt: skip
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=10) as client:
        for name, question in QUESTIONS.items():
            told = await client.post(f"{server.url}/v1/query", json={"query": question})
            paths[f"record-{name}"] = f"/console/records/{told.json()['query_id']}"
    run(
        "node", "--test", Path(__file__).with_name("pages.e2e.mjs"), cwd=ROOT,
        environment={
            "CONSOLE_URL": server.url, "CONSOLE_KEY": await key_of(database, "audit", "lead"), "CONSOLE_PATHS": json.dumps(paths),
            "CONSOLE_PLUGIN": str(PLUGIN), "E2E_BROWSER": browser, browser.upper(): program,
            "E2E_SCREENSHOTS": os.environ.get("E2E_SCREENSHOTS", ""),
        },
    )  # fmt: skip
