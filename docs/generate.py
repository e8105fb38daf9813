"""Writes docs/reference from the code: the command line from its own help, the configuration from its own fields, the
control API from its own OpenAPI document.

`python docs/generate.py` writes; a test calls `pages` and fails when what is written is stale.
"""

import ast
import inspect
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from rolltape import config
from rolltape.cli import app
from rolltape.cli.commands import COMMANDS
from rolltape.gateway.control import document

REFERENCE = Path(__file__).parent / "reference"
_SECTIONS = {
    config.ServeConfig: "Top level",
    config.EngineConfig: "engine",
    config.Limits: "limits",
    config.Retention: "retention",
    config.ContinueConfig: "continuing",
    config.TokenIdCapture: "token_id_capture",
    config.AgentOptions: "agents.NAME",
}
_ERROR = "[ErrorBody](#errorbody)"
NOTE = "<!-- written by `make docs`; change the code, not this page -->\n\n"


def pages() -> dict[str, str]:
    """File name to contents."""
    return {
        "cli.md": NOTE + "".join(_cli()),
        "config.md": NOTE + "".join(_config()),
        "control.md": NOTE + "".join(_control()),
    }


def _cli() -> Iterator[str]:
    yield "# The command line\n\nWhat `rolltape COMMAND --help` says.\n"
    yield _page()
    for name, command in COMMANDS.items():
        yield _page(name)
        yield from (_page(name, below) for below in command.commands)


def _page(*commands: str) -> str:
    return f"\n## {' '.join(['rolltape', *commands])}\n\n```text\n{_help(commands)}\n```\n"


def _help(commands: tuple[str, ...]) -> str:
    page = io.StringIO()
    app.help_print(commands, console=Console(file=page, width=100, no_color=True))
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


def _control() -> Iterator[str]:
    told = document()
    yield (
        "# The control API\n\nWhat `GET /control/openapi.json` says, for people. The control token goes into "
        "`Authorization: Bearer ...`; bodies are JSON.\n"
    )
    for title, one in _operations(told):
        yield f"\n## {title}\n\n{one['summary']}\n\n"
        yield from _operation(one)
    yield "\n## Errors\n\n| status | |\n|---|---|\n"
    answers = [answer for _, one in _operations(told) for answer in one["responses"].items()]
    for status, answer in sorted({(status, a["description"]) for status, a in answers if _content(a) == _ERROR}):
        yield f"| {status} | {answer} |\n"
    for name, schema in told["components"]["schemas"].items():
        yield f"\n## {name}\n\n{_sentence(schema.get('description'))}\n\n| field | type | required |\n|---|---|---|\n"
        for field, kind in schema["properties"].items():
            required = "yes" if field in schema.get("required", ()) else ""
            yield f"| `{field}` | {_schema(kind).replace('|', chr(92) + '|')} | {required} |\n"


def _operations(told: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for method, one in methods.items():
            yield f"{method.upper()} {path}", one


def _operation(one: dict[str, Any]) -> Iterator[str]:
    if "security" not in one:
        yield "- wants no token\n"
    for parameter in one.get("parameters", ()):
        yield f"- `{parameter['name']}` (in the {parameter['in']}): {_schema(parameter['schema'])}\n"
    if "requestBody" in one:
        yield f"- takes {_content(one['requestBody'])}\n"
    errors = [status for status, answer in one["responses"].items() if _content(answer) == _ERROR]
    for status, answer in one["responses"].items():
        if status not in errors:
            yield f"- {status}: {_content(answer)}\n"
    if errors:
        yield f"- {', '.join(errors)}: {_ERROR}\n"


def _content(holder: dict[str, Any]) -> str:
    return ", ".join(_schema(told["schema"]) for told in holder["content"].values())


def _schema(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": ref}:
            return f"[{ref.rsplit('/', 1)[1]}](#{ref.rsplit('/', 1)[1].lower()})"
        case {"anyOf": kinds}:
            return " or ".join(map(_schema, kinds))
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"type": "array", "items": items}:
            return f"array of {_schema(items)}"
        case {"type": str(kind)}:
            return kind
    return "anything"


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
