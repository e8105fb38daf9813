"""Every link of the documentation leads somewhere, and a symbol that a page names is defined where it links to."""

import ast
import re
from pathlib import Path

import pytest

from docs import pages

SYMBOL = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")


def headings(page: Path) -> set[str]:
    """The anchors of a page, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def defined(source: Path) -> set[str]:
    """Names that a module defines at its top and one class deep, as `Name` and `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        found |= {target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = (m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{member}" for member in members}
    return found


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for text, target in pages.links(page):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"[{text}]({target}) leads nowhere"
        assert not anchor or anchor in headings(there), f"[{text}]({target}): no such heading"


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_symbol_that_a_page_links_is_defined_there(page):
    for text, target in pages.links(page):
        source, symbol = (page.parent / target).resolve(), SYMBOL.fullmatch(text)
        if source.suffix == ".py" and symbol and not text.strip("`").endswith(".py"):
            assert symbol[1] in defined(source), f"{text} is not defined in {target}"
