"""Writes docs/reference from the code: the command line from its own help, the configuration from its own fields.

`python docs/generate.py` writes; a test calls `pages` and fails when what is written is stale.
"""

import ast
import inspect
import io
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from rolltape import config
from rolltape.cli import app
from rolltape.cli.commands import COMMANDS

REFERENCE = Path(__file__).parent / "reference"
_SECTIONS = {
    config.ServeConfig: "Top level",
    config.EngineConfig: "engine",
    config.Limits: "limits",
    config.TokenIdCapture: "token_id_capture",
    config.AgentOptions: "agents.NAME",
}
NOTE = "<!-- written by `make docs`; change the code, not this page -->\n\n"


def pages() -> dict[str, str]:
    """File name to contents."""
    return {"cli.md": NOTE + "".join(_cli()), "config.md": NOTE + "".join(_config())}


def _cli() -> Iterator[str]:
    yield "# The command line\n\nWhat `rolltape COMMAND --help` says.\n"
    for name in ("", *COMMANDS):
        yield f"\n## rolltape {name}".rstrip() + f"\n\n```text\n{_help(name)}\n```\n"


def _help(command: str) -> str:
    page = io.StringIO()
    app.help_print([command] if command else [], console=Console(file=page, width=100, no_color=True))
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip().splitlines())


def _config() -> Iterator[str]:
    yield "# The configuration of `rolltape serve`\n\nOne YAML file; unknown keys are errors. Flags win over it.\n"
    for kind, title in _SECTIONS.items():
        tree = ast.parse(Path(inspect.getfile(kind)).read_text())
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
        yield f"\n## {title}\n\n{_sentence(ast.get_docstring(node))}\n\n| key | type | default | |\n|---|---|---|---|\n"
        yield from _fields(node)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            default = f"`{ast.unparse(field.value)}`" if field.value else "required"
            kind = _type(field.annotation).replace("|", "\\|")
            yield f"| `{field.target.id}` | `{kind}` | {default} | {_sentence(described or '')} |\n"


def _type(annotation: ast.expr) -> str:
    """As a reader wants it: `Annotated[int, ...]` is an int."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return ast.unparse(kind)
    return ast.unparse(annotation)


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
