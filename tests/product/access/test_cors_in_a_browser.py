"""Pages of other sites in a real browser, which keeps the rules of CORS by itself: who may ask, and who may read."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from engine.storage.database import Database
from tests.conftest import Running, running
from tests.product.browser import CHROMIUM, Page, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

SHORTEST_S = 10  # that a token may be made for
QUESTION = {"query": "What does an IMU measure?"}


class Empty(BaseHTTPRequestHandler):
    """A page of some site, from which a script asks."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A site</title>")

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def a_site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def sites() -> Iterator[tuple[str, str]]:
    with a_site() as listed, a_site() as unlisted:
        yield listed, unlisted


@pytest.fixture(scope="module")
def engine(database: Database, sites: tuple[str, str]) -> Iterator[Running]:
    """With one of the two sites on its list."""
    os.environ["AFFIDAVIT_SERVER__ALLOWED_ORIGINS"] = f"{sites[0]},https://other.example"
    try:
        with running(database.settings.data_dir, command="serve") as started:
            yield started
    finally:
        del os.environ["AFFIDAVIT_SERVER__ALLOWED_ORIGINS"]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def token(engine: Running, key: str, origin: str, **about: Any) -> str:
    made = httpx.post(
        f"{engine.url}/v1/public-tokens",
        json={"origin": origin} | about,
        headers={"Authorization": f"Bearer {key}"},
    )
    return str(made.json()["token"])


def asked(page: Page, site: str, url: str, secret: str, accept: str = "application/json") -> dict[str, Any]:
    """What a script of that site sees of an answer: its status, its text as it came in parts, and headers; or that it is blocked."""
    page.open(f"{site}/")
    request = {
        "method": "POST",
        "headers": {
            "Content-Type": "application/json",
            "Accept": accept,
            "Authorization": f"Bearer {secret}",
        },
        "body": json.dumps(QUESTION),
    }
    told = page.read(f"""(async () => {{
        try {{
            const answer = await fetch({json.dumps(url)}, {json.dumps(request)});
            const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
            const parts = [];
            for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(part.value);
            return {{status: answer.status, text: parts.join(''), headers: Object.fromEntries(answer.headers)}};
        }} catch (fault) {{ return {{blocked: fault.name}}; }}
    }})()""")
    assert isinstance(told, dict)
    return told


def test_a_page_of_a_listed_site_asks_and_reads(
    page: Page, engine: Running, sites: tuple[str, str], key: str
) -> None:
    told = asked(page, sites[0], f"{engine.url}/v1/query", token(engine, key, sites[0]))
    assert told["status"] == 200
    assert json.loads(told["text"])["outcome"] == "answered"
    for name in ("x-request-id", "ratelimit-remaining", "x-query-id", "x-receipt"):
        assert name in told["headers"]


def test_a_page_of_a_listed_site_reads_a_stream(
    page: Page, engine: Running, sites: tuple[str, str], key: str
) -> None:
    told = asked(page, sites[0], f"{engine.url}/v1/query", token(engine, key, sites[0]), "text/event-stream")
    assert told["status"] == 200
    assert told["text"].startswith("event: sources\n")
    assert "\n\nevent: done\n" in told["text"]


# Seen red with every origin allowed once one is listed.
def test_a_page_of_an_unlisted_site_is_blocked_whatever_it_sends(
    page: Page, engine: Running, sites: tuple[str, str], key: str
) -> None:
    for secret in (key, token(engine, key, sites[0])):
        assert asked(page, sites[1], f"{engine.url}/v1/query", secret) == {"blocked": "TypeError"}


def test_a_refused_token_is_read_by_the_page_in_plain_words(
    page: Page, engine: Running, sites: tuple[str, str], key: str
) -> None:
    of_another_site = asked(
        page, sites[0], f"{engine.url}/v1/query", token(engine, key, "https://other.example")
    )
    assert of_another_site["status"] == 403
    assert "another site" in json.loads(of_another_site["text"])["detail"]
    made_up = asked(page, sites[0], f"{engine.url}/v1/query", token(engine, key, sites[0]) + "x")
    assert made_up["status"] == 401
    other_book = asked(page, sites[0], f"{engine.url}/v1/books/another/query", token(engine, key, sites[0]))
    assert other_book["status"] == 403


@pytest.mark.campaign
def test_an_expired_token_is_refused_and_says_so(
    page: Page, engine: Running, sites: tuple[str, str], key: str
) -> None:
    short = token(engine, key, sites[0], ttl_s=SHORTEST_S)
    page.open(f"{sites[0]}/")
    page.read(
        f"new Promise((done) => setTimeout(done, {1000 * SHORTEST_S}))"
    )  # no event says that time has passed
    told = asked(page, sites[0], f"{engine.url}/v1/query", short)
    assert (told["status"], json.loads(told["text"])["title"]) == (401, "The public token has expired")
