"""What the model is told: long enough to be cached, the same in every request, and its fingerprint in every record."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from engine.grounding.verify import NOT_STATED, SENTINEL, Instructions, is_proven
from engine.house import House
from engine.models import Released
from engine.providers.claude import Claude
from engine.providers.minilm import MiniLm
from engine.settings import PROMPT
from tests.asking import IMU, asked
from tests.build import citation, claim, evidence
from tests.conftest import Records
from tests.upstreams import messages
from tests.upstreams.messages import Block, citing

CACHED_TOKENS_MIN = 512
WORDS = PROMPT.read_text()


def test_it_is_long_enough_to_be_cached() -> None:
    """By the offline tokenizer, which counts more for the same words than the vendor's: so with a third to spare."""
    assert MiniLm().count_tokens(WORDS) > CACHED_TOKENS_MIN * 4 / 3


@pytest.mark.parametrize("abstention", [SENTINEL, NOT_STATED])
def test_the_sentences_of_abstention_stand_in_it_as_we_look_for_them(abstention: str) -> None:
    assert WORDS.count(abstention) == 2  # the rule and the example
    assert f"   {abstention}\n" in WORDS


def test_it_asks_for_the_confidence_line_and_shows_it() -> None:
    assert "exactly this form, in English: Confidence: 0.93" in WORDS
    assert WORDS.count("\n    Confidence: 0.9") == 4


def test_its_good_example_is_proven_by_its_passage_and_its_bad_one_is_not() -> None:
    """The bad example must not be proven by the passage of the good one."""
    found = [
        evidence(
            "A clockwork below the gallery of Orrin Rock rings the fog bell.",
            "The keeper winds it every four hours.",
            "In winter the bell is taken down.",
        )
    ]
    cited, told = citation(found, 0, 0, 2), Instructions.of("")
    good = "A clockwork below the gallery rings the fog bell, and the keeper winds it every four hours."
    assert good in " ".join(WORDS.split())
    assert is_proven(claim(cited, text=good), found, told)
    for bad in (
        "Great question!",
        "According to the excerpts, lighthouses are important for safety.",
        "Fog bells are usually struck six times a day and can be heard for several miles.",
        "In summary, they protect ships.",
    ):
        assert bad in " ".join(WORDS.split())
    steps = evidence(
        "To reset the lamp, close the shutter.", "Then wait for one minute.", "Open the shutter again."
    )
    for place, step in enumerate(steps.passage.sentences):
        text = steps.passage.text[step.start : step.end]
        assert text in " ".join(WORDS.split())
        assert is_proven(claim(citation([steps], 0, place, place + 1), text=text), [steps], told)
    assert not is_proven(claim(cited, text="Fog bells are struck six times a day."), found, told)


def test_its_examples_are_never_told_as_an_answer() -> None:
    """With an example from the subject of a book an honest sentence of that book could not leave."""
    found = [evidence("The keeper winds the clockwork, and the fog bell rings.")]
    text = "A clockwork below the gallery rings the fog bell, and the keeper winds it."
    assert not is_proven(claim(citation(found, 0, 0, 1), text=text), found, Instructions.of(WORDS))


def quoting(request: dict[str, Any]) -> list[Block]:
    """The first sentence that was sent."""
    cited = citing(request, 0, 0, 1)
    return [{"text": cited["cited_text"], "citations": [cited]}]


async def test_its_fingerprint_is_in_the_record_and_its_words_in_every_request_the_same(
    house: House, records: Records
) -> None:
    async with messages.serving() as upstream:
        upstream.write = quoting
        claude = Claude(
            model="claude-haiku-5-5",
            max_output_tokens=700,
            api_key="k",
            base_url=upstream.url,
            timeout_s=2.5,
            system=WORDS,
        )
        engine = replace(house.engine, generator=claude)
        answers = [await engine.answer(asked(question)) for question in (IMU, "How does a robot walk?")]
        await claude.close()
    assert [type(answer.outcome) for answer in answers] == [Released, Released]
    assert [request["system"][0]["text"] for request in upstream.requests] == [WORDS, WORDS]
    for answer in answers:
        assert records.of(answer.trail.query_id)[0]["prompt_sha256"] == sha256(WORDS.encode()).hexdigest()
