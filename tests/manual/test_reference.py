"""The generated pages of the reference say what the product does today."""

import pytest

from tests.manual import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (reference.FOLDER / name).read_text() == reference.pages()[name], "run `make reference`"


def test_every_column_that_auditors_see_has_a_comment() -> None:
    assert "|  |" not in reference.pages()["log.md"]


def test_every_argument_of_the_command_line_says_what_it_means() -> None:
    """Seen red: the id of a key, the SQL, the month and the query of a proof had no words."""
    assert "|  |" not in reference.pages()["command-line.md"]
