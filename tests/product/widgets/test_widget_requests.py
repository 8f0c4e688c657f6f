"""What widgets send besides a question, and what they do with a session."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from pydantic import BaseModel

from engine.admission.sessions import Sessions
from engine.errors import InvalidFieldError
from engine.grounding.cite import LOW_MARK
from engine.house import SPOOLING, House
from engine.http import v1
from engine.http.widgets import lookups, spec_000, spec_001
from engine.http.widgets.contract import SourceList, read
from engine.models import Excerpt
from tests.build import passage
from tests.conftest import Records
from tests.in_process import application
from tests.product.widgets.clients import WIDGETS, Widget

IMU = "What does an IMU measure?"
OFF_TOPIC = "Who wrote Pride and Prejudice?"
MARK = re.compile(r' \[(?:\d+|Source: .*?")\]', re.DOTALL)
OF_ANOTHER_BOOK = "It is a truth universally acknowledged, that a single man must be in want of a wife."
WITH_SESSIONS = [widget for widget in WIDGETS if widget.has_sessions]


def path_of(widget: Widget) -> str:
    return widget.path


# What the family's widgets were seen to send.
BESIDES: dict[str, Any] = {
    "user_context": {"level": "beginner", "background": None},
    "conversation_history": [
        {"role": "assistant", "content": "…", "sources": [{"chapter": {"title": {"text": "deep"}}}]}
    ]
    * (v1.JSON_ITEMS_MAX + 1),
    "agent": "QueryRouterAgent",
    "chapter_id": 3,
    "half": "\ud800\x00",
}


# Seen red on the old code: a history with its sources was "nested too deeply", and nothing was noted of what was ignored.
@pytest.mark.parametrize("widget", WIDGETS, ids=path_of)
def test_what_a_widget_sends_besides_is_ignored_and_noted(
    client: httpx.Client, records: Records, widget: Widget
) -> None:
    body = json.dumps(widget.body(IMU, **BESIDES)).encode()
    response = client.post(widget.path, content=body, headers={"X-Request-ID": (request_id := str(uuid4()))})
    assert response.status_code == 200, response.text
    (row,) = records.where("request_id = %s", request_id)
    assert (row["outcome"], row["user_query_text"]) == ("answered", IMU)
    assert row["details"]["ignored_fields"] == sorted(BESIDES)


# Seen red with the gap between two sentences left out of a stream.
@pytest.mark.parametrize("question", [IMU, "What is the difference between SLAM and odometry?", OFF_TOPIC])
async def test_every_contract_gives_the_same_answer_in_one_piece_and_as_a_stream(
    house: House, key: str, question: str
) -> None:
    said = set()
    async with application(house, key=key) as (_, http):
        for widget in WIDGETS:
            seen = [await widget.fetch_stream(http, widget.body(question))]
            if not widget.streams_always:
                seen.append(await widget.fetch_json(http, widget.body(question)))
            said |= {MARK.sub("", one.text.replace(LOW_MARK, "")).strip() for one in seen}
    assert len(said) == 1


def test_v1_still_refuses_what_it_does_not_have_and_names_it(client: httpx.Client) -> None:
    problem = client.post("/v1/query", json={"query": IMU, "agent": "a"}).json()
    assert (problem["status"], problem["field"]) == (422, "agent")
    assert problem["detail"] == "agent: This is not a field of the request."


# A name may be anything, but a body is not a place for a thousand of them.
def test_names_of_ignored_fields_are_checked_and_counted(client: httpx.Client, records: Records) -> None:
    for names, status in (
        (["\x00"], 400),
        (["\ud800"], 400),
        (map(str, range(101)), 400),
        (map(str, range(90)), 200),
    ):
        body = json.dumps({"question": IMU} | dict.fromkeys(names, 1)).encode()
        response = client.post("/query", content=body)
        assert response.status_code == status
    (row,) = records.of(response.headers["x-query-id"])
    assert len(row["details"]["ignored_fields"]) == 20


# Seen red on the old code: `/query` and `/api/ask` answered from the whole book.
@pytest.mark.parametrize("widget", WIDGETS, ids=path_of)
def test_a_selection_is_honoured_on_every_contract(
    client: httpx.Client, records: Records, widget: Widget
) -> None:
    request_id = str(uuid4())
    body = widget.body("What is it?", selected_text=OF_ANOTHER_BOOK)
    assert client.post(widget.path, json=body, headers={"X-Request-ID": request_id}).status_code == 200
    (row,) = records.where("request_id = %s", request_id)
    assert (row["source_mode"], row["reason"]) == ("context-restricted", "selection_not_in_book")


def test_spec_001_is_read_in_camel_case(client: httpx.Client, records: Records) -> None:
    user_id, session_id = uuid4(), uuid4()
    body = {
        "query": IMU,
        "userId": str(user_id),
        "sessionId": str(session_id),
        "topK": 3,
        "selectedText": None,
    }
    said = client.post("/api/v1/query", json=body | {"filters": {"tags": []}}).json()
    (row,) = records.where("session_id = %s", session_id)
    assert (row["end_user"], row["top_k"], row["details"]) == (f"user:{user_id}", 3, None)
    assert said["sessionId"] == said["session_id"] == str(session_id)
    assert said["tokensUsed"] == said["tokens_used"]
    for source in said["sources"]:
        assert source["chapterId"] == source["chapter_id"]
        assert source["relevanceScore"] == source["relevance_score"] > 0


@pytest.mark.parametrize(("name", "value"), [("sessionId", 1), ("session_id", 1), ("topK", 11)])
def test_an_error_names_the_field_as_it_was_written(client: httpx.Client, name: str, value: Any) -> None:
    problem = client.post("/api/v1/query", json={"query": IMU, name: value}).json()
    assert problem["field"] == name
    assert problem["detail"].startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["message", "query", "question"])
def test_the_chat_takes_a_question_under_each_of_its_names(client: httpx.Client, name: str) -> None:
    said = client.post("/api/chat", json={name: IMU}).json()
    assert said["answer"] == said["response"]
    assert (said["has_answer"], said["num_sources"]) == (True, len(said["sources"]))
    assert [source["excerpt_num"] for source in said["sources"]] == list(range(1, said["num_sources"] + 1))
    empty = client.post("/api/chat", json={name: ""}).json()
    assert empty["detail"] == f"{name}: must have 1 to 1000 characters, but has 0."


# Seen red: the first spelling won, also with null, so a selection in the other one was answered from the whole book.
@pytest.mark.parametrize(
    ("body", "kind", "found"),
    [
        ({"selected_text": None, "selectedText": "An IMU"}, spec_001.ConversedBody, {"selected_text": "An IMU"}),
        ({"topK": 3, "top_k": None}, spec_001.ConversedBody, {"top_k": 3}),
        ({"top_k": 3, "topK": 3}, spec_001.ConversedBody, {"top_k": 3}),
        ({"top_k": None, "topK": None}, spec_001.ConversedBody, {"top_k": None}),
        ({"message": None, "question": IMU}, spec_000.ChatBody, {"message": IMU}),
    ],
    ids=str,
)  # fmt: skip
def test_null_in_one_spelling_leaves_the_other(
    body: dict[str, Any], kind: type[BaseModel], found: dict[str, Any]
) -> None:
    asked, ignored = read(json.dumps({"query": IMU} | body).encode(), kind)
    assert asked.model_dump().items() >= found.items()
    assert ignored == ()


# Seen red: the second value was neither read, nor validated, nor noted in the row.
@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        ({"query": IMU, "top_k": 1, "topK": 9}, spec_001.ConversedBody, "topK"),
        ({"query": IMU, "top_k": 1, "topK": "many"}, spec_001.ConversedBody, "topK"),
        ({"query": IMU, "session_id": str(uuid4()), "sessionId": str(uuid4())}, spec_001.ConversedBody, "sessionId"),
        ({"message": "", "query": IMU}, spec_000.ChatBody, "query"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_two_values_for_one_field_are_refused(
    body: dict[str, Any], kind: type[BaseModel], field: str
) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        read(json.dumps(body).encode(), kind)
    assert caught.value.field == field


def test_the_stream_of_spec_001_is_the_one_of_its_typescript(client: httpx.Client) -> None:
    names = {"chunk", "done", "sources", "confidence", "tokensUsed", "error"}
    response = client.post("/api/v1/query", json={"query": IMU}, headers={"Accept": "text/event-stream"})
    *chunks, last = [json.loads(event[6:]) for event in response.text.split("\n\n") if event]
    assert chunks and all(set(chunk) == {"chunk", "done"} and not chunk["done"] for chunk in chunks)
    assert names - set(last) == {"error"}
    assert last["done"] is True
    assert str(UUID(last["sessionId"])) == last["session_id"]


def cited(section: str, n: int) -> Excerpt:
    return Excerpt(n, "c", section, "Walking", "a.md", "1", "/", "…", 0, 1, 0.7)


def test_a_mark_counts_the_list_and_never_points_beyond_its_end() -> None:
    number = SourceList(lambda excerpt: excerpt.section, most=2).numbers()
    sections = ["Balance", "Gait", "Balance", "Feet", "Gait"]
    assert [number(cited(section, n)) for n, section in enumerate(sections, 1)] == [1, 2, 1, None, 2]


def test_a_section_without_a_heading_still_has_a_name() -> None:
    place = passage("A robot moves.", section="", chapter="Walking")
    assert spec_000._place(place) == ("Walking", "Walking", place.filename)


@pytest.fixture
async def site(house: House, key: str) -> AsyncIterator[httpx.AsyncClient]:
    sessions = Sessions(house.pool, 30, uuid4)
    async with application(house, key=key, sessions=sessions) as (_, http):
        yield http


@pytest.mark.parametrize("manner", ["JSON", "stream"])
@pytest.mark.parametrize("widget", WITH_SESSIONS, ids=path_of)
async def test_a_conversation_goes_on(
    site: httpx.AsyncClient, records: Records, widget: Widget, manner: str
) -> None:
    fetch = widget.fetch_json if manner == "JSON" else widget.fetch_stream
    headers = {"X-End-User": f"user:{uuid4()}"}
    first = await fetch(site, widget.body(IMU), **headers)
    assert first.last
    session_id = first.last["session_id"]
    request_id = str(uuid4())
    body = widget.body("Why does it drift?", session_id=session_id)
    second = await fetch(site, body, **headers, **{"X-Request-ID": request_id})
    assert second.last and second.last["session_id"] == session_id
    (row,) = records.where("request_id = %s", request_id)
    assert row["retrieval_query"] == f"Why does it drift?\n{IMU}"


# Seen red without `may_begin_anew`: 404 for each further question of a reader whose browser keeps the id. And with the id's
# form demanded: 422 for each of them.
@pytest.mark.parametrize("widget", WITH_SESSIONS, ids=path_of)
async def test_a_session_that_cannot_be_continued_begins_anew(
    site: httpx.AsyncClient, records: Records, widget: Widget
) -> None:
    of_another_reader = (await site.post("/v1/query", json={"query": IMU})).json()["session_id"]
    for dead in (of_another_reader, str(uuid4()), "nope"):
        seen = await widget.fetch_json(site, widget.body("Why does it drift?", session_id=dead))
        assert seen.status == 200 and seen.last
        begun = seen.last["session_id"]
        assert begun != dead
        said = seen.last.get("session_message") or seen.last["filter_message"]
        assert said == "The earlier conversation could not be continued, so a new one begins here."
        (row,) = records.where("session_id = %s", begun)
        assert row["retrieval_query"] == "Why does it drift?"
        assert row["details"] == {"session_not_continued": "not an id" if dead == "nope" else dead}
        again = {"X-Session-Token": seen.last["session_token"]}
        assert (await widget.fetch_json(site, widget.body(IMU, session_id=begun), **again)).status == 200


# Seen red: 422 for a widget that sends an empty id before it has one.
@pytest.mark.parametrize("widget", WITH_SESSIONS, ids=path_of)
async def test_an_empty_session_id_is_none(site: httpx.AsyncClient, records: Records, widget: Widget) -> None:
    seen = await widget.fetch_json(site, widget.body(IMU, session_id=""))
    assert seen.status == 200 and seen.last
    assert (seen.last.get("session_message"), seen.last["filter_message"]) == (None, None)
    (row,) = records.where("session_id = %s", seen.last["session_id"])
    assert row["details"] is None


# Seen red: the gateway had to ask again, which left two rows for one question.
async def test_v1_begins_a_session_anew_only_for_who_prefers_that(
    site: httpx.AsyncClient, records: Records
) -> None:
    for dead, problem in ((str(uuid4()), 404), ("nope", 422)):
        body = {"query": IMU, "session_id": dead}
        assert (await site.post("/v1/query", json=body)).status_code == problem
        headers = {"Prefer": "respond-async, new-session", "X-Request-ID": (request_id := str(uuid4()))}
        said = (await site.post("/v1/query", json=body, headers=headers)).json()
        (row,) = records.where("request_id = %s", request_id)
        assert said["session_id"] == str(row["session_id"]) != dead
        assert (
            said["session_message"]
            == "The earlier conversation could not be continued, so a new one begins here."
        )


async def test_the_conversation_is_read_and_cleared_at_the_familys_address(
    site: httpx.AsyncClient, records: Records
) -> None:
    owner = {"X-End-User": f"user:{uuid4()}"}
    said = (await site.post("/api/v1/query", json={"query": IMU}, headers=owner)).json()
    address = f"/api/v1/chat/sessions/{said['session_id']}"
    read = (await site.get(address, headers=owner)).json()
    assert [message["role"] for message in read["messages"]] == ["user", "assistant"]
    assert (await site.delete(address)).status_code == 404  # of nobody, so of no owner
    request_id = str(uuid4())
    cleared = await site.delete(address, headers=owner | {"X-Request-ID": request_id})
    assert (cleared.status_code, cleared.json()["deleted"]) == (200, True)
    (row,) = records.where("request_id = %s", request_id)
    assert row["endpoint"] == "/api/v1/chat/sessions/{session_id}"
    assert (await site.get(address, headers=owner)).status_code == 404


def test_without_sessions_spec_001_has_an_id_that_harms_nobody(client: httpx.Client) -> None:
    first = client.post("/api/v1/query", json={"query": IMU}).json()
    again = client.post("/api/v1/query", json={"query": IMU, "session_id": first["session_id"]})
    assert again.status_code == 200


def test_without_sessions_an_id_that_is_none_is_noted(client: httpx.Client, records: Records) -> None:
    said = client.post("/api/v1/query", json={"query": IMU, "sessionId": "nope"}).json()
    (row,) = records.of(said["sessionId"])
    assert (row["session_id"], row["details"]) == (None, {"session_not_continued": "not an id"})


def test_the_chapters_are_those_that_citations_name(client: httpx.Client, records: Records) -> None:
    response = client.get("/chapters", headers={"X-Request-ID": (request_id := str(uuid4()))})
    said = lookups.ChaptersBody.model_validate(response.json())
    by_id = {chapter.id: chapter for chapter in said.chapters}
    assert len(by_id) == said.total_count > 1
    for citation in client.post("/v1/query", json={"query": IMU}).json()["citations"]:
        chapter = by_id[citation["filename"].removesuffix(".md")]
        assert chapter.title == citation["chapter"]
        assert chapter.url == citation["url"].partition("#")[0]
    (row,) = records.where("request_id = %s", request_id)
    assert (row["endpoint"], row["book_id"], row["outcome"]) == ("/chapters", "physical-ai", "served")


# Seen red: the header stood in the row's book_id, which no erasure reaches, whatever it was and however long.
@pytest.mark.parametrize(
    "named", ["reader@example.org", "x" * 9000, "Physical-AI", ""], ids=lambda text: text[:20]
)
def test_a_header_that_names_no_book_is_not_recorded_as_one(
    client: httpx.Client, records: Records, named: str
) -> None:
    sent = {"X-Book-ID": named, "X-Request-ID": (request_id := str(uuid4()))}
    assert client.get("/chapters", headers=sent).status_code == 404
    (row,) = records.where("request_id = %s", request_id)
    assert (row["book_id"], row["http_status"]) == (None, 404)


# Seen red on the page's examples: the text stood in the row's book_id, and with a NUL no row could be written: 503.
@pytest.mark.parametrize("named", ["reader@example.org", "%00", "%ED%A0%80", "Physical-AI"])
def test_an_address_that_names_no_book_is_not_recorded_as_one(
    client: httpx.Client, records: Records, named: str
) -> None:
    sent = {"X-Request-ID": (request_id := str(uuid4()))}
    assert client.get(f"/page/books/{named}/examples", headers=sent).status_code == 404
    (row,) = records.where("request_id = %s", request_id)
    assert (row["book_id"], row["http_status"]) == (None, 404)


@pytest.mark.parametrize("path", lookups.HEALTH)
def test_health_needs_no_key_and_leaves_no_row(client: httpx.Client, records: Records, path: str) -> None:
    request_id = str(uuid4())
    response = client.get(path, headers={"Authorization": "", "X-Request-ID": request_id})
    assert (response.status_code, response.json()["status"]) == (200, "healthy")
    assert records.where("request_id = %s", request_id) == []


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({"database": "ready", "records": "ready"}, "healthy"),
        ({"database": SPOOLING, "records": SPOOLING}, "degraded"),
        ({"database": SPOOLING, "book": "no book published"}, "unhealthy"),
    ],
)
def test_health_is_what_becomes_of_a_question(parts: dict[str, str], status: str) -> None:
    assert lookups.status_of(parts) == status
