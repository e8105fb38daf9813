"""The pages of the documentation, as tests read them: links, and blocks of code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")})
NOT_RUN = "# not run by the tests:"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    language: str
    code: str

    @property
    def runs(self) -> bool:
        """False where the block says, in its first line, that the tests leave it out."""
        return self.language in ("sh", "python") and not self.code.startswith(NOT_RUN)


def blocks(page: Path) -> list[Block]:
    return [Block(language, code) for language, code in _FENCE.findall(page.read_text())]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """(text, target) of every link outside blocks of code."""
    yield from _LINK.findall(_FENCE.sub("", page.read_text()))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
