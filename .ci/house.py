"""The rules of the house that no linter knows: short files, and no registry or machine named in them.

Reads every tracked or new file that git does not ignore; prints one line a finding; exit status 1 if there is any.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 500
LONG_BY_NATURE = {"constraints.txt", "LICENSE"}
GENERATED = ("docs/reference/",)
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".sh", ".css", ".html", ""}
REGISTRY = re.compile(r"\b(?:pypi|pythonhosted|npmjs|yarnpkg)\.(?:org|com|io)\b|--(?:extra-)?index-url|--find-links")


def files() -> Iterator[Path]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines():
        path = Path(name)
        if path.suffix in TEXT and path.is_file():
            yield path


def findings(path: Path) -> Iterator[str]:
    text = path.read_text(errors="replace")
    n = text.count("\n")
    if n > MAX_LINES and path.name not in LONG_BY_NATURE and not str(path).startswith(GENERATED):
        yield f"{path}: {n} lines, more than {MAX_LINES}: split it where it has two subjects"
    if path != Path(__file__).resolve().relative_to(Path.cwd()):
        for number, line in enumerate(text.splitlines(), 1):
            if match := REGISTRY.search(line):
                yield f"{path}:{number}: names a registry ({match[0]}); leave that to the user's own configuration"


def main() -> None:
    found = [finding for path in files() for finding in findings(path)]
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    sys.exit(bool(found))


main()
