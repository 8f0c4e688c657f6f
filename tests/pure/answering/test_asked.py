"""What a question asks for: the form of its answer, and the fact that the answer has to state."""

import pytest

from engine.reading.asked import read
from engine.reading.facts import asked_fact


@pytest.mark.parametrize(
    ("question", "fact", "states", "misses"),
    [
        ("How many kilos did it weigh?", "weight", "It had a mass of 130 kg.", "It was heavy in 1973."),
        ("What does an arm cost?", "price", "An arm is sold for $4,000.", "An arm has 7 joints."),
        ("How expensive is a licence?", "price", "It costs 99 euros.", "There are 3 licences."),
        ("How tall is the robot?", "length", "It stands 1.3 m high.", "It has 43 motors."),
        ("How long does it take to charge?", "duration", "After 90 minutes it is full.", "It has 48 V."),
        ("In which year was it founded?", "time", "It began in 1992.", "It began with 12 people."),
        ("When was the filter published?", "time", "It appeared in March 1960.", "It has 2 steps."),
        ("Who invented the gear?", "maker", "It was invented by Walton Musser.", "It is light and precise."),
        ("How many layers does the network have?", "number", "The network has 4 layers.", "It runs at 50 Hz."),
        ("How much faster is the inner loop?", "number", "It is ten times faster.", "It is much faster."),
        ("Which formula gives it? I need the formula for it", "formula", "x = v / ω", "It is a point."),
    ],
)  # fmt: skip
def test_a_fact_is_required_and_recognised(question: str, fact: str, states: str, misses: str) -> None:
    found = asked_fact(question)
    assert found
    assert found.name == fact
    assert found.is_stated(states)
    assert not found.is_stated(misses)


# Seen red without the names: the price of another model was the answer.
def test_a_fact_about_another_model_is_not_stated() -> None:
    fact = asked_fact("How many grams does the D435i weigh?")
    assert fact
    assert fact.is_stated("The D435i weighs 72 g.")
    assert fact.is_stated("Its mass is 72 g.", heading="RealSense D435i")
    assert not fact.is_stated("The L515 weighs 100 g.")
    mount = asked_fact("How long does the 48V pack last?")
    assert mount
    assert mount.is_stated("It lasts for two hours.")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How often is the competition held?", "It is held every five years."),
        ("What fraction of the robots fall?", "One out of ten falls."),
        ("When did the dynasty end?", "It ended in 907."),
        ("What year was it signed?", "The treaty of 821 fixed the borders."),
        ("How many robots did they build?", "They built a third robot."),
        ("Who made the first gear?", "The gear was invented in America by Walton Musser."),
        ("Which company builds it?", "It is sold by Unitree."),
        ("What is the name of the launch file?", "It is called bringup.launch.py."),
        ("What is the name of the node?", "The node is named scan_publisher."),
        ("How often should I calibrate it?", "Calibrate it before each use."),
        ("How deep is the network?", "The network has 12 layers."),
        ("How high is the voltage?", "It is 48 V."),
        ("How fast do motors react?", "They react within 2 ms."),
        ("Who discovered radium?", "Curie discovered radium."),
        ("How tall is it?", "It is 5'8\" tall."),
        ("How many joints are there?", "Thirteen of them are joints."),
    ],
)
def test_a_fact_is_recognised_in_many_forms(question: str, answer: str) -> None:
    fact = asked_fact(question)
    assert fact
    assert fact.is_stated(answer)


# Seen red with the pattern searched anywhere in the question.
@pytest.mark.parametrize(
    "question",
    [
        "How does a lidar know how far away a wall is?",
        "Do I write the limits in degrees?",
        "When would I pick an action?",
        "Why does it cost so much?",
        "How do I count how many nodes run?",
        "What is a joint?",
        "How hard is it to walk on two legs?",
        "How much does friction matter?",
        "What does overfitting cost the model?",
        "How long must the password be?",
        "Which value does spin_once return?",
        "Which date format is used?",
        "What does cost of transport mean?",
        "Give me code that estimates how many hours are left",
    ],
)
def test_no_fact_is_required_where_the_question_leaves_doubt(question: str) -> None:
    assert read(question).fact is None


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("What is a joint?", "definition"),
        ("zmp meaning", "definition"),
        ("Why do robots fall?", "why"),
        ("How do I build the package?", "how_to"),
        ("What is the difference between a node and a topic?", "difference"),
        ("Give me an example of a sensor", "example"),
        ("Which command lists the topics?", "code"),
        ("In which year was it built?", "fact"),
        ("Can a robot jump?", "other"),
    ],
)
def test_the_form_of_the_answer_follows_the_question(question: str, form: str) -> None:
    assert read(question).form == form


@pytest.mark.parametrize(
    ("question", "fits", "fits_not"),
    [
        ("What is a joint?", "A joint is a connection of two links.", "Robots have many a joint to move."),
        ("zmp meaning", "ZMP (Zero Moment Point) : the point where no moment acts", "Research on ZMP goes on."),
        ("Why do robots fall?", "They fall because they lean.", "They fall often."),
        ("Give me an example", "For example, a toaster.", "A toaster is simple."),
    ],
)  # fmt: skip
def test_a_text_of_that_form_fits(question: str, fits: str, fits_not: str) -> None:
    aim = read(question)
    assert aim.fits(fits, "statement")
    assert not aim.fits(fits_not, "statement")
