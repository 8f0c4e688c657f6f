"""The description of the interface is complete, and true: whatever it allows or forbids is tried on a running server."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import schemathesis
from hypothesis import strategies
from pydantic import BaseModel
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

from engine.errors import RequestError
from engine.http import cors, problems, v1
from engine.http.app import create_app
from engine.http.page import context
from engine.http.records import erasures, feedback
from engine.http.widgets import CONTRACTS, lookups
from engine.storage.database import Database
from tests import openapi
from tests.conftest import CAMPAIGN_ROUNDS, Running, running

ROUNDS = CAMPAIGN_ROUNDS or 0.5
EXAMPLES = int(8 * ROUNDS)  # of each operation and kind, and sequences of requests
NOTHING_OF_A_BOOK = {
    "/", "/healthz", "/readyz", "/health", "/api/health", "/metrics", "/openapi.json", "/v1/signing-keys",
}  # fmt: skip

Json = dict[str, Any]


schemathesis.openapi.format(
    "end-user",
    strategies.uuids(version=4).map(lambda it: f"user:{it}")
    | strategies.ip_addresses().map(lambda it: f"anon:{it}"),
)


@pytest.fixture(scope="module")
def document() -> Json:
    return create_app(nullcontext).openapi()  # type: ignore[arg-type]  # nobody moves in


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_the_committed_description_is_the_one_that_is_served() -> None:
    """Else run `make openapi`, and name the change in the CHANGELOG."""
    assert openapi.FILE.read_text() == openapi.text()


def test_every_status_has_a_schema_and_every_problem_an_example(document: Json) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            assert "X-Request-ID" in response["headers"], name
            for media_type, content in response["content"].items():
                assert content["schema"], (name, status)
                if media_type == problems.MEDIA_TYPE:
                    told = problems.Problem.model_validate(content["example"])
                    assert told.status == int(status), name


def test_every_body_has_an_example_that_is_valid(document: Json) -> None:
    said: list[type[BaseModel]] = [contract.says for contract in CONTRACTS]
    said += [lookups.HealthBody, lookups.ChaptersBody]
    said += [v1.QueryResponse, v1.PassageBody, v1.SessionBody, v1.DeletedBody]
    said += [erasures.ErasureBody, cors.PublicTokenBody, feedback.FeedbackBody]
    said += [context.ContextBody, context.ExamplesBody, context.ReadableBooksBody]
    models = {model.__name__: model for model in said}
    for name, operation in operations(document):
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["schema"]["examples"], name
        content = operation["responses"]["200"]["content"].get("application/json", {})
        model = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if model:
            for example in content["examples"].values():
                models[model].model_validate(example["value"])
                assert set(example["value"]) == set(models[model].model_fields), name


def test_every_failure_there_is_has_a_status_that_the_questions_name(document: Json) -> None:
    named = set(document["paths"]["/v1/query"]["post"]["responses"])

    def failures(kind: type[RequestError]) -> Iterator[type[RequestError]]:
        for below in kind.__subclasses__():
            yield below
            yield from failures(below)

    others = {"405", "409", "501"}  # not of a question, and of what no endpoint sees
    assert {str(kind.status) for kind in failures(RequestError)} - others <= named


def test_every_operation_that_a_key_opens_says_so(document: Json) -> None:
    for name, operation in operations(document):
        is_open = name.removeprefix("GET ") in NOTHING_OF_A_BOOK
        assert ("security" in operation) is not is_open, name
        assert ("401" in operation["responses"]) is not is_open, name


@dataclass
class Tried:
    """What was sent, by its id, with the status of what came back."""

    statuses: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@pytest.mark.campaign
def test_whatever_the_description_allows_or_forbids_is_answered_as_it_says_and_leaves_its_row(
    data_dir: Path, database: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tier in ("ANONYMOUS", "AUTHENTICATED"):
        monkeypatch.setenv(f"AFFIDAVIT_LIMITS__{tier}", "1000000/minute")
    before = rows_by_status(database)
    with running(data_dir, command="serve") as server:
        tried = try_all(server, key)
        counted = requests_by_status(httpx.get(f"{server.url}/metrics").text)
    assert tried.failures == []
    assert not {status for status in tried.statuses.values() if status >= 500} - {503}
    assert len(set(tried.statuses.values())) >= 6  # it came further than the door
    assert len(tried.statuses) > 200
    assert rows_by_status(database) - before == counted


def try_all(server: Running, key: str) -> Tried:
    """All that schemathesis has: the examples, the corners of each schema, random bodies, good and bad, and sequences."""
    tried = Tried()
    config = SchemathesisConfig.from_dict(
        {
            "seed": 7,
            "generation": {"max-examples": EXAMPLES, "mode": "all", "allow-x00": False},
            "headers": {"Authorization": f"Bearer {key}"},
        }
    )
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    schema.hook("map_body")(with_whole_numbers)
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            note(tried, event.recorder)
        elif isinstance(event, events.NonFatalError):
            tried.failures.append(str(event.info))
        elif isinstance(event, events.FatalError):
            raise event.exception
    return tried


def with_whole_numbers(_: Any, body: Any) -> Any:
    """To JSON Schema 4.0 is an integer; to us it is not."""
    if isinstance(body, dict):
        return {name: with_whole_numbers(None, value) for name, value in body.items()}
    return int(body) if isinstance(body, float) and body.is_integer() and abs(body) < 1000 else body


def note(tried: Tried, recorder: Any) -> None:
    for case_id, interaction in recorder.interactions.items():
        if interaction.response is not None:
            tried.statuses[case_id] = interaction.response.status_code
        for check in recorder.checks.get(case_id, []):
            if check.status == Status.FAILURE:
                sent = recorder.cases[case_id].value.as_curl_command()
                tried.failures.append(f"{check.failure_info.failure}: {sent}")


def requests_by_status(figures: str) -> Counter[int]:
    """What must have left a row."""
    counted: Counter[int] = Counter()
    line = re.compile(r'affidavit_requests_total\{endpoint="(.+?)",.*status="(\d+)"\} (\d+)')
    for endpoint, status, count in line.findall(figures):
        if not (endpoint in NOTHING_OF_A_BOOK and status == "200"):
            counted[int(status)] += int(count)
    return counted


def rows_by_status(database: Database) -> Counter[int]:
    with psycopg.connect(database.url) as connection:
        found = connection.execute(
            "SELECT http_status, sum(repeat_count) FROM audit_logs WHERE endpoint <> 'heartbeat' GROUP BY 1"
        ).fetchall()
    return Counter({status: int(count) for status, count in found})
