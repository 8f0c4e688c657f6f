"""Claude behind the generator's seam: the vendor's own SDK against a server that speaks its interface."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from engine.answer import Engine
from engine.errors import ModelBusyError, ModelFailedError, OutOfTimeError, RequestError
from engine.grounding.verify import NOT_STATED, SENTINEL
from engine.house import House
from engine.models import Claim, Draft, Question, Refusal, Released
from engine.providers.claude import RAW_CHARACTERS_MAX, Claude, Run, StreamParser
from engine.settings import PROMPT
from tests.asking import IMU, asked
from tests.build import citation, evidence
from tests.conftest import Records
from tests.upstreams import messages
from tests.upstreams.faults import parsed
from tests.upstreams.messages import Block, Upstream, citing, whole

KEY = "sk-test-canary"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with messages.serving() as started:
        yield started


@pytest.fixture
async def claude(upstream: Upstream) -> AsyncIterator[Claude]:
    made = Claude(
        model="claude-haiku-5-5", max_output_tokens=700, api_key=KEY, base_url=upstream.url, timeout_s=2.5,
        system=PROMPT.read_text(),
    )  # fmt: skip
    yield made
    await made.close()


@pytest.fixture
def engine(house: House, claude: Claude) -> Engine:
    return replace(house.engine, generator=claude)


def two_sentences(request: dict[str, Any]) -> list[Block]:
    return [
        {"text": "An IMU holds three accelerometers", "citations": [citing(request, 0, 0, 1)]},
        {"text": " and three gyroscopes. "},
        {"text": "Everybody loves IMUs. Really. They are aligned ", "citations": []},
        {"text": "with three perpendicular axes.", "citations": [citing(request, 0, 0, 1)]},
        {"text": "\nConfidence: 0.91"},
    ]


async def test_sentences_without_citation_are_removed_and_the_rest_is_cited(
    engine: Engine, upstream: Upstream, records: Records
) -> None:
    upstream.write = two_sentences
    answer = await engine.answer(asked())
    assert isinstance(answer.outcome, Released)
    assert answer.outcome.text.startswith("An IMU holds three accelerometers and three gyroscopes. [Source: ")
    assert "They are aligned with three perpendicular axes. [Source: " in answer.outcome.text
    assert "loves" not in answer.outcome.text
    assert answer.outcome.generation_confidence == 0.91
    (row,) = records.of(answer.trail.query_id)
    assert row["provider_request_id"] == "req_1"
    assert (row["tokens_input"], row["tokens_output"]) == (900, 40)
    assert (row["model_requested"], row["stop_reason"]) == ("claude-haiku-5-5", "end_turn")
    assert row["prompt_sha256"]
    assert IMU in row["llm_prompt"]
    assert KEY not in str(row)


async def test_the_request_is_the_one_that_citations_need(engine: Engine, upstream: Upstream) -> None:
    upstream.write = two_sentences
    await engine.answer(asked())
    (request,) = upstream.requests
    *results, question = request["messages"][0]["content"]
    assert question == {"type": "text", "text": IMU}
    assert all(item["type"] == "search_result" and item["citations"] == {"enabled": True} for item in results)
    assert request["thinking"] == {"type": "disabled"}
    assert not {"temperature", "top_p", "top_k", "output_config"} & set(request)
    assert request["system"][0]["text"] == PROMPT.read_text()
    assert KEY in (
        upstream.headers[0].get("x-api-key"),
        upstream.headers[0].get("authorization", "").removeprefix("Bearer "),
    )


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], list[Block]], str, str]] = {
    "abstains": (lambda _: [{"text": SENTINEL + "\nConfidence: 0.9"}], "end_turn", "insufficient_evidence"),
    "does not find the attribute": (lambda _: [{"text": NOT_STATED}], "end_turn", "attribute_not_found"),
    "abstains within an answer": (
        lambda request: [{"text": f"Well. {SENTINEL}", "citations": [citing(request, 0, 0, 1)]}],
        "end_turn",
        "insufficient_evidence",
    ),
    "truncated": (two_sentences, "max_tokens", "citation_failed"),
    "declines": (lambda _: [], "refusal", "model_refused"),
    "says nothing": (lambda _: [], "end_turn", "insufficient_evidence"),
    "cites nothing": (lambda _: [{"text": "An IMU measures motion."}], "end_turn", "citation_failed"),
    "cites a wrong text": (
        lambda request: [
            {"text": "Love.", "citations": [citing(request, 0, 0, 1) | {"cited_text": "Love."}]}
        ],
        "end_turn",
        "citation_failed",
    ),
    "cites what was not sent": (
        lambda request: [
            {"text": "Love.", "citations": [citing(request, 0, 0, 1) | {"search_result_index": 99}]}
        ],
        "end_turn",
        "citation_failed",
    ),
}


# Seen red with every sentence sent, and with a citation's places taken for those of the passage.
async def test_what_is_never_an_answer_is_not_sent_and_citations_lead_to_the_right_sentence(
    upstream: Upstream, claude: Claude
) -> None:
    found = evidence(
        "What is an IMU?", "An IMU measures motion.", "See also: gyroscopes.", "It drifts.", "It is small.",
        kinds=("question", "statement", "navigation"),
    )  # fmt: skip
    upstream.write = lambda request: [
        {"text": "An IMU drifts and is small.", "citations": [citing(request, 1, 0, 2)]},
        {"text": "An IMU measures motion.", "citations": [citing(request, 0, 0, 1)]},
    ]
    claims = [claim async for claim in claude.write(Question("IMU?", "book", 5), [found], Draft("claude"))]
    (request,) = upstream.requests
    sent = [block["text"] for part in request["messages"][0]["content"][:-1] for block in part["content"]]
    assert sent == ["An IMU measures motion.", "It drifts.", "It is small."]
    assert [item.citations for item in claims] == [
        (citation([found], 0, 3, 5),),
        (citation([found], 0, 1, 2),),
    ]


@pytest.mark.parametrize(("write", "stop_reason", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_is_not_proven_is_refused(
    engine: Engine,
    upstream: Upstream,
    write: Callable[[dict[str, Any]], list[Block]],
    stop_reason: str,
    reason: str,
) -> None:
    upstream.write, upstream.stop_reason = write, stop_reason
    answer = await engine.answer(asked())
    assert isinstance(answer.outcome, Refusal)
    assert answer.outcome.reason == reason


@pytest.mark.parametrize(
    ("status", "failure"),
    [(529, ModelBusyError), (429, ModelBusyError), (500, ModelBusyError), (400, ModelFailedError)],
)
async def test_a_failing_model_is_tried_once_and_recorded(
    engine: Engine, upstream: Upstream, records: Records, status: int, failure: type[RequestError]
) -> None:
    upstream.status = status
    with pytest.raises(failure) as caught:
        await engine.answer(asked())
    assert len(upstream.requests) == 1
    (row,) = records.of(caught.value.query_id)
    assert (row["http_status"], row["error_type"]) == (failure.status, "llm")
    assert "canary" not in str(row["error_message"])


EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
LONG_S = 2.0  # far beyond what reading takes


def cited(text: str) -> Block:
    """A block of text that cites the first sentence of the first passage."""
    return {"text": text, "citations": [{
        "type": "search_result_location", "search_result_index": 0, "start_block_index": 0, "end_block_index": 1,
        "source": "s", "title": "t", "cited_text": "An IMU holds gyroscopes.",
    }]}  # fmt: skip


def plain(text: str) -> Block:
    return {"text": text}


def read(*blocks: Block) -> tuple[Draft, list[Claim]]:
    """What becomes of these blocks, as the vendor's own event objects."""
    draft = Draft("claude")
    reading, claims = StreamParser(draft, [Run(0, 0, 9)]), []
    for sent in whole({"model": "claude"}, list(blocks))[:-1]:
        claims += reading.claims(EVENT.validate_python(parsed(sent)))
    return draft, [*claims, *reading.end()]


# Seen red with the last line alone looked at, with the first estimate taken, and with one out of range cut to 1.
@pytest.mark.parametrize(
    ("last", "estimate"),
    [
        ("", None),
        ("\nConfidence: 0.91", 0.91),
        ("\nconfidence:0.91\n\n", 0.91),
        ("\n**Confidence: 0.91**", 0.91),
        (" Confidence: 0.91", 0.91),
        ("\nConfidence: 0.91.", 0.91),
        ("\nConfidence: 1.7", None),
        ("\nConfidence: -0.5", None),
        ("\nConfidence: 91%", None),
        ("\nConfidence: nan", None),
        ("\nConfidence: high", None),
        ("\nConfidence:", None),
        ("\nConfidence: 0.2\nConfidence: 0.91", 0.91),
        ("\nZuversicht: 0.91", None),
        ("\n置信度：0.91", None),  # noqa: RUF001
    ],
)
def test_the_estimate_is_read_and_is_no_part_of_the_answer(last: str, estimate: float | None) -> None:
    draft, claims = read(cited("An IMU holds gyroscopes."), plain(last))
    assert draft.confidence == estimate
    assert [claim.text for claim in claims if claim.citations] == ["An IMU holds gyroscopes."]
    assert not any("confidence" in claim.text.lower() for claim in claims)


def test_an_estimate_in_the_middle_counts_for_nothing_and_is_removed() -> None:
    draft, claims = read(cited("An IMU drifts.\nConfidence: 0.4\nIt is cheap."))
    assert draft.confidence is None
    assert [claim.text for claim in claims] == ["An IMU drifts.", "It is cheap."]


def test_an_estimate_inside_a_cited_block_is_not_cited() -> None:
    draft, claims = read(cited("An IMU drifts.\nConfidence: 0.4"))
    assert draft.confidence == 0.4
    assert [claim.text for claim in claims] == ["An IMU drifts."]


def test_an_estimate_in_pieces_is_read() -> None:
    draft, _ = read(cited("An IMU drifts."), plain("\nConfid"), plain("ence: 0."), plain("93"))
    assert draft.confidence == 0.93


# Seen red with the sentinel looked for letter by letter in each sentence.
@pytest.mark.parametrize(
    "blocks",
    [
        [plain(SENTINEL)],
        [cited(SENTINEL)],
        [plain(SENTINEL.upper())],
        [plain(SENTINEL.replace(" covered ", "\ncovered  "))],
        [plain(f"Sorry, but t{SENTINEL[1:]}")],
        [cited(f"Well, t{SENTINEL[1:-1]}, but an IMU holds gyroscopes.")],
        [cited("An IMU drifts."), plain(f" {SENTINEL}\nConfidence: 0.9")],
        [plain(SENTINEL[:20]), plain(SENTINEL[20:40]), cited(SENTINEL[40:])],
    ],
    ids=str,
)
def test_who_says_that_it_does_not_know_has_not_answered(blocks: list[Block]) -> None:
    draft, claims = read(*blocks)
    assert draft.has_abstained
    assert not any("covered" in claim.text.lower() for claim in claims if claim.citations)


SENTENCES: dict[str, tuple[list[Block], list[str]]] = {
    "over several blocks": ([cited("An IMU "), plain("really "), cited("drifts.")], ["An IMU really drifts."]),
    "several in a block": ([cited("It drifts. It warms up! Does it?")], ["It drifts.", "It warms up!", "Does it?"]),
    "CJK": ([cited("机器人会走。它会跑！真的？")], ["机器人会走。", "它会跑！", "真的？"]),  # noqa: RUF001
    "CJK in quotes": ([cited("他说“走。”然后走。")], ["他说“走。”", "然后走。"]),
    "Hindi": ([cited("रोबोट चलता है। वह दौड़ता है।")], ["रोबोट चलता है।", "वह दौड़ता है।"]),
    "Arabic": ([cited("هل يمشي؟ نعم.")], ["هل يمشي؟", "نعم."]),
    "ellipsis": ([cited("It drifts… It warms up.")], ["It drifts…", "It warms up."]),
    "Markdown": ([cited("**It drifts.** _It warms up._")], ["**It drifts.**", "_It warms up._"]),
    "a list": ([cited("- It drifts\n- It warms up")], ["- It drifts", "- It warms up"]),
    "abbreviations": ([cited("A joint, e.g. the hip, i.e. no leg.")], ["A joint, e.g. the hip, i.e. no leg."]),
    "decimals": ([cited("It weighs 1.5 kg. It costs 3.2.")], ["It weighs 1.5 kg.", "It costs 3.2."]),
    "quotation": ([cited('It said "stop." It stopped.')], ['It said "stop."', "It stopped."]),
    "lines": ([cited("It drifts\r\nIt warms up\u2028It stops")], ["It drifts", "It warms up", "It stops"]),
    "thoughts": ([{"thinking": "It flies."}, cited("It drifts.")], ["It drifts."]),
    "nothing": ([], []),
    "only space": ([plain(" \n "), cited("")], []),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "texts"), SENTENCES.values(), ids=SENTENCES.keys())
def test_sentences_are_told_apart(blocks: list[Block], texts: list[str]) -> None:
    _, claims = read(*blocks)
    assert [claim.text for claim in claims] == texts
    assert all(claim.citations for claim in claims)


# Seen red with the share counted by blocks, and with only the marks of Latin scripts and of CJK.
@pytest.mark.parametrize(
    "blocks",
    [
        [plain("Robots will rule the world, and as such "), cited("an IMU drifts.")],
        [plain("Robots will rule the world. "), cited("An IMU drifts.")],
        [plain("Robots will rule the world."), cited("An IMU drifts.")],
        [plain("Robots will rule the world… "), cited("An IMU drifts.")],
        [plain("रोबोट राज करेंगे। वे "), cited("IMU बहता है।")],
        [cited("An"), plain(" IMU tells robots to rule the world.")],
        [plain("Robots rule, cf. Asimov. "), cited(".")],
    ],
    ids=str,
)
def test_what_is_not_cited_does_not_slip_in_with_what_is(blocks: list[Block]) -> None:
    _, claims = read(*blocks)
    for claim in claims:
        if "rule" in claim.text or "राज" in claim.text:
            assert claim.cited_share < 0.5


# Seen red with patterns that try again from every place: half a minute.
@pytest.mark.parametrize("piece", [".", " ", "*", "\n", ".'", "Confidence:*", '."', "?!", "。"])
def test_a_hostile_answer_is_read_in_no_time(piece: str) -> None:
    started = time.monotonic()
    read(cited((piece * RAW_CHARACTERS_MAX)[: RAW_CHARACTERS_MAX - 1] + "x"))
    assert time.monotonic() - started < LONG_S


# Seen red with the tokens that were read anew alone.
def test_what_the_cache_was_read_for_is_counted() -> None:
    usage = {"input_tokens": 40, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 60}
    draft = Draft("claude")
    sent = parsed(messages.start({"model": "claude"}))
    sent["message"]["usage"] |= usage
    StreamParser(draft, [Run(0, 0, 9)]).claims(EVENT.validate_python(sent))
    assert draft.tokens_input == 900


async def test_a_model_that_is_not_there(engine: Engine, house: House, records: Records) -> None:
    gone = Claude(
        model="claude-haiku-5-5",
        max_output_tokens=9,
        api_key=KEY,
        base_url="http://127.0.0.1:9",
        timeout_s=1,
        system="",
    )
    with pytest.raises((ModelFailedError, OutOfTimeError)) as caught:
        await replace(engine, generator=gone).answer(asked())
    await gone.close()
    assert len(records.of(caught.value.query_id)) == 1
