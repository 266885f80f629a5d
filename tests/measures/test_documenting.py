"""Documents that are made from declarations say what the declarations say."""

from pathlib import Path

from spiritlevel.measures.documenting import page

ROOT = Path(__file__).parents[2]


def test_page_of_measures_is_up_to_date():
    assert (ROOT / "docs" / "measures.md").read_text(encoding="utf-8") == page(), "run `make docs`"
