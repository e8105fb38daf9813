"""The page on breaks has every cause, in the words of the code."""

from docs import pages
from rolltape.rebuild.breaks import ADVICE, MEANING, Cause


def test_the_table_of_causes_is_what_the_code_says():
    page = (pages.ROOT / "docs" / "breaks.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]

    assert rows == [f"| `{cause}` | {MEANING[cause]} | {ADVICE[cause]} |" for cause in Cause]
