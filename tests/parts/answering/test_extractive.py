"""The generator without a language model: which of the book's sentences answer."""

from collections.abc import Iterator, Sequence

import pytest

from engine.grounding.verify import NO_INSTRUCTIONS, is_proven, refuse_unproven
from engine.models import (
    NEVER_AN_ANSWER,
    Draft,
    Question,
    RetrievedPassage,
    SentenceKind,
    Vector,
    Wording,
)
from engine.providers import extractive
from engine.providers.extractive import Extractive
from engine.providers.minilm import MiniLm
from engine.retrieval.wording import asking_clauses
from tests.build import evidence


class Counting(MiniLm):
    """MiniLM, which notes the texts that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []

    async def embed_query(self, text: str) -> Vector:
        self.embedded.append(text)
        return await super().embed_query(text)


@pytest.fixture(scope="module")
def loaded() -> Counting:
    return Counting()


@pytest.fixture
def embedder(loaded: Counting) -> Iterator[Counting]:
    yield loaded
    loaded.embedded.clear()


async def answer(embedder: Counting, asked: str, *passages: RetrievedPassage) -> list[str]:
    return await written(Extractive(embedder), asked, passages)


async def written(generator: Extractive, asked: str, passages: Sequence[RetrievedPassage]) -> list[str]:
    draft = Draft("extractive")
    claims = [claim async for claim in generator.write(Question(asked, "book", 5), passages, draft)]
    assert all(is_proven(claim, passages, NO_INSTRUCTIONS) for claim in claims)
    assert draft.is_complete
    return [claim.text for claim in claims]


# Seen red with units made of every kind.
@pytest.mark.parametrize("kind", sorted(NEVER_AN_ANSWER))
async def test_what_states_nothing_is_never_an_answer(embedder: Counting, kind: SentenceKind) -> None:
    found = evidence(
        "What does an accelerometer measure?",
        "An accelerometer measures specific force.",
        kinds=(kind,),
    )
    assert await answer(embedder, "What does an accelerometer measure?", found) == [
        "An accelerometer measures specific force."
    ]


CODE = "import rclpy\n\ndef publish_speed(node):\n    node.publisher.publish(speed)"


# Seen red with every block of code a unit.
async def test_a_block_of_code_answers_only_who_asks_for_code(embedder: Counting) -> None:
    said = "A node publishes the speed of the robot on a topic."
    found = evidence(said, CODE, kinds=("statement", "code"))
    assert await answer(embedder, "What does the node say about the speed?", found) == [said]
    assert f"```\n{CODE}\n```" in await answer(
        embedder, "What is the code to publish the speed of a node?", found
    )


# Seen red without `_LEANS`.
async def test_a_sentence_that_leans_on_the_one_before_brings_it_along(embedder: Counting) -> None:
    found = evidence(
        "The controller runs on a small computer.",
        "A watchdog expects a sign of life.",
        "It stops the robot safely if the controller hangs and no sign of life comes in time.",
    )
    assert await answer(embedder, "What stops the robot if the controller hangs?", found) == [
        "A watchdog expects a sign of life.",
        "It stops the robot safely if the controller hangs and no sign of life comes in time.",
    ]


# Seen red without the list.
async def test_a_lead_in_brings_its_list(embedder: Counting) -> None:
    items = ["Plan the step.", "Shift the weight.", "Lift the foot."]
    found = evidence("A biped takes a step in three phases:", *items, kinds=("lead_in", *["item"] * 3))
    assert await answer(embedder, "In which phases does a biped take a step?", found) == [
        "A biped takes a step in three phases:",
        *items,
    ]


# Seen red with the row's own text as the claim.
async def test_a_row_is_said_with_the_names_of_its_columns_and_cites_both(embedder: Counting) -> None:
    table = ["Sensor | Range", "Lidar | 100 m", "Sonar | 5 m"]
    found = evidence(*table, joint="\n", kinds=("header", "row", "row"))
    draft = Draft("extractive")
    asked = Question("What is the range of a lidar?", "book", 5)
    claims = [claim async for claim in Extractive(embedder).write(asked, [found], draft)]
    assert claims[0].text == "Sensor: Lidar; Range: 100 m"
    assert [citation.cited_text for citation in claims[0].citations] == table[:2]


# Seen red with the first sentence of each passage as the header of its rows.
async def test_a_row_has_no_header_of_another_passage(embedder: Counting) -> None:
    """A table longer than a passage goes on in the next one without its header."""
    first = evidence(
        "Sensor | Range", "Lidar sensor | a range of 100 m", kinds=("header", "row"), chunk_id="a"
    )
    rows = ["Sonar sensor | a range of 5 m", "Infrared sensor | a range of 2 m"]
    second = evidence(*rows, kinds=("row", "row"), chunk_id="b")
    for found in ((first, second), (second, first)):
        said = await written(Extractive(embedder), "What is the range of each sensor?", found)
        assert sorted(said) == sorted(["Sensor: Lidar sensor; Range: a range of 100 m", *rows])


async def test_a_question_that_leans_on_the_one_before_is_read_with_it(embedder: Counting) -> None:
    found = evidence("The zero moment point is where no moment acts.", "Robots are painted white.")
    asked = Question("What is that?", "book", 5, context="What is the zero moment point?")
    claims = [c.text async for c in Extractive(embedder).write(asked, [found], Draft("extractive"))]
    assert claims == ["The zero moment point is where no moment acts."]


async def test_the_best_unit_is_never_the_one_that_is_cut(embedder: Counting) -> None:
    items = [f"The gripper part number {n} of the robot hand." for n in range(8)]
    lists = [
        evidence(f"The gripper of the robot has parts of kind {name}:", *items, kinds=("lead_in", *["item"] * 8), chunk_id=name)
        for name in "ab"
    ]  # fmt: skip
    best = evidence("The gripper of the robot hand is closed by a motor.", chunk_id="c")
    said = await written(Extractive(embedder), "What closes the gripper of the robot hand?", [*lists, best])
    assert "The gripper of the robot hand is closed by a motor." in said
    assert len(said) <= 12


# Seen red without the fact: the weight was answered with the sentence about the name.
async def test_a_thing_without_the_asked_attribute_is_a_refusal(embedder: Counting) -> None:
    found = evidence("WABOT-1 was the first full-scale humanoid robot and could walk.")
    draft = Draft("extractive")
    asked = Question("How many kilos did WABOT-1 weigh?", "book", 5)
    assert [claim async for claim in Extractive(embedder).write(asked, [found], draft)] == []
    refusal = refuse_unproven(draft, [], [found])
    assert refusal
    assert (refusal.reason, refusal.nearest) == ("attribute_not_found", (found,))


async def test_the_asked_attribute_is_answered_where_it_stands(embedder: Counting) -> None:
    found = evidence("WABOT-1 was the first full-scale humanoid.", "WABOT-1 had a mass of 130 kg.")
    assert await answer(embedder, "How many kilos did WABOT-1 weigh?", found) == [
        "WABOT-1 had a mass of 130 kg."
    ]


# Seen red with the whole letter compared, which is mostly about its writer.
async def test_of_a_long_question_the_clause_that_asks_decides(embedder: Counting) -> None:
    found = evidence(
        "Retired teachers and two beginners built a robot in a garage in winter.",
        "The inertial measurement unit is mounted rigidly to the pelvis of the robot.",
    )
    letter = (
        "Good evening, I am a retired teacher and I am building a robot with two beginners in a garage this winter."
        " Could you please tell us where on the robot the inertial measurement unit is mounted? Thank you!"
    )
    wording = Wording(letter, asking_clauses(letter))
    generator, draft = Extractive(embedder), Draft("extractive")
    asked = Question(letter, "book", 5, wording=wording)
    claims = [claim.text async for claim in generator.write(asked, [found], draft)]
    assert claims == ["The inertial measurement unit is mounted rigidly to the pelvis of the robot."]


# Seen red: "explain this" was compared with the sentences, and none was similar.
@pytest.mark.parametrize("asked", ["Explain this", "Can you summarise that for me?", "What does this mean?"])
async def test_a_selection_explains_itself(embedder: Counting, asked: str) -> None:
    found = evidence("The pelvis carries the trunk.", "It links both legs.", "Its mass is small.")
    question = Question(asked, "book", 5, selected_text="The pelvis carries the trunk. It links both legs.")
    claims = [c.text async for c in Extractive(embedder).write(question, [found], Draft("extractive"))]
    assert claims == ["The pelvis carries the trunk.", "It links both legs.", "Its mass is small."]


async def test_a_sentence_of_two_overlapping_passages_is_quoted_once(embedder: Counting) -> None:
    same = "The zero moment point must stay inside the support polygon."
    first = evidence("Standing robots balance.", same, chunk_id="a")
    second = evidence(same, "Feet are flat.", chunk_id="b")
    assert await answer(embedder, "Where must the zero moment point stay?", first, second) == [same]


# Seen red with sentences embedded without their headings.
async def test_a_sentence_is_read_under_its_heading(embedder: Counting) -> None:
    lidar = evidence("The range is a hundred metres in daylight.", heading="LiDAR", chunk_id="a")
    sonar = evidence("The range is five metres in daylight.", heading="Ultrasonic Sensors", chunk_id="b")
    assert (await answer(embedder, "How far does a LiDAR see?", sonar, lidar))[-1].startswith(
        "The range is a hundred"
    )
    assert any(text.startswith("LiDAR: ") for text in embedder.embedded)


async def test_an_answer_has_four_sentences_at_most(embedder: Counting) -> None:
    found = evidence(*[f"The robot measures its speed with sensor number {n}." for n in range(12)])
    assert len(await answer(embedder, "How does the robot measure its speed?", found)) == 4


async def test_without_a_similar_sentence_it_abstains(embedder: Counting) -> None:
    assert await answer(embedder, "Who won the cup final?", evidence("Gears reduce the speed.")) == []


async def test_a_sentence_is_embedded_once(embedder: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, found = Extractive(embedder), [evidence("Gears reduce the speed of a motor.")]
    asked = "What do gears do to the speed?"
    assert await written(generator, asked, found) == await written(generator, asked, found)
    assert embedder.embedded == [asked, "Balance: Gears reduce the speed of a motor.", asked]
    monkeypatch.setattr(extractive, "CACHED_MAX", 1)
    await written(generator, asked, [evidence("A belt also reduces the speed of a motor.")])
    assert len(generator._vectors) == 1
