"""Pages of the site that mkdocs generates from the code, and links into the repository.

``docs/`` holds the written pages. This file adds one page for each command, method and task, and the fields of the
files of a run. A link from a page to a file of the repository becomes a link to the page made from that file, or plain
code where the site has no such page, so the same text also works when it is read in the repository.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specbench.cli.app import app  # noqa: E402
from specbench.cli.list_families import families  # noqa: E402
from specbench.common import registry  # noqa: E402
from specbench.results import request_schema, schema, summary_schema  # noqa: E402

_BLOCK = re.compile(r"<!-- specbench: .*?-->\n?(.*?)<!-- /specbench -->", re.S)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.S)
_LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)#\s]*)(#[^)]*)?\)")
#: Models of the files in a run's folder, by heading.
_FILES = {
    "run.json": [schema.RunConfig],
    "requests.jsonl": [request_schema.RequestRecord, request_schema.TokenTrace, request_schema.GpuTrace],
    "summary.json": [summary_schema.RunSummary, summary_schema.MethodSummary],
}


def sources() -> dict[str, Path]:
    """File of the repository that each page of the site is made from, by the page's place in the site."""
    written = {str(page.relative_to(ROOT / "docs")): page for page in (ROOT / "docs").rglob("*.md")}
    for kind in ("methods", "tasks"):
        for page in sorted((ROOT / kind).glob("*/README.md")):
            written[f"reference/{kind}/{page.parent.name}.md"] = page
    return written


def on_config(config: Any) -> Any:
    """List the generated pages in the navigation, where ``mkdocs.yml`` names their folder."""
    places = [*generated_pages()]
    config.nav = _with_folders(config.nav, places)
    return config


def _with_folders(nav: Any, places: Sequence[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _with_folders(entry, places) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [_with_folders(entry, places) for entry in nav]
    if nav.endswith("/"):
        found = sorted(
            (place for place in places if place.startswith(nav)), key=lambda at: (not at.endswith("index.md"), at)
        )
        return found
    return nav


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the pictures of the committed report."""
    for place, text in generated_pages().items():
        files.append(File.generated(config, place, content=text))
    for picture in sorted((ROOT / "reports" / "report_pictures").glob("*.svg")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def generated_pages() -> dict[str, str]:
    """The pages that are not written under ``docs/``: place in the site, and text."""
    pages = {place: page.read_text() for place, page in sources().items() if page.name == "README.md"}
    for kind, cards in (("methods", registry.methods()), ("tasks", registry.tasks())):
        folders = {card.name: card.package.rpartition(".")[2] for card in cards.values() if card.origin == "specbench"}
        pages[f"reference/{kind}/index.md"] = _index(kind, folders)
    pages |= {f"reference/commands/{name}.md": text for name, text in command_pages()}
    pages["reference/fields.md"] = fields_page()
    pages["reference/families.md"] = families_page()
    return pages


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave the comments of generated blocks out, and point links at pages of the site."""
    place = page.file.src_uri
    text = _COMMENT.sub("", _BLOCK.sub(r"\1", markdown))
    return _outside_code(text, lambda part: _LINK.sub(lambda link: _linked(link, place), part))


def _outside_code(text: str, change: Any) -> str:
    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def _linked(link: re.Match[str], place: str) -> str:
    picture, shown, target, anchor = link[1], link[2], link[3], link[4] or ""
    source = sources().get(place)
    if source is None or not target or "://" in target:
        return link[0]
    wanted = Path(os.path.normpath(source.parent / target))
    if picture and wanted.is_relative_to(ROOT / "reports"):
        return f"![{shown}]({_relative('pictures/' + wanted.name, place)})"
    by_source = {page: at for at, page in sources().items()} | _made_from()
    for page in (wanted, wanted / "README.md", wanted / "index.md"):
        if page in by_source:
            return f"{picture}[{shown}]({_relative(by_source[page], place)}{anchor})"
    if wanted.is_relative_to(ROOT / "docs"):
        return link[0]
    # The site does not have this file: keep the text, and add the file's name where the text does not name it.
    return (
        shown if "`" in shown or wanted.is_relative_to(ROOT / "results") else f"{shown} (`{wanted.relative_to(ROOT)}`)"
    )


def _made_from() -> dict[Path, str]:
    """Pages of the site that are generated from a folder or module, by that place."""
    made = {ROOT / kind: f"reference/{kind}/index.md" for kind in ("methods", "tasks")}
    made[ROOT / "specbench" / "results"] = "reference/fields.md"
    folder = ROOT / "specbench" / "cli" / "commands"
    files = {name: f"{name.replace('-', '_')}{'_' * iskeyword(name)}.py" for name in commands()}
    return made | {folder / file: f"reference/commands/{name}.md" for name, file in files.items()}


def _relative(target: str, place: str) -> str:
    return os.path.relpath(target, os.path.dirname(place) or ".")


def _index(kind: str, folders: dict[str, str]) -> str:
    cards = registry.methods() if kind == "methods" else registry.tasks()
    rows = [
        f"| [`{name}`]({folder}.md) | {cards[name].info.get('summary') or cards[name].info.get('title', '')} |"
        for name, folder in folders.items()
    ]
    return "\n".join([f"# {kind.capitalize()}", "", f"| `--{kind[:-1]}` | what it is |", "| --- | --- |", *rows, ""])


def commands() -> dict[str, Any]:
    """The commands, in the order of ``specbench --help``."""
    import typer

    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command with all its options, and their list."""
    listed = ["# Commands", "", "Every command takes `--help`; `--help-all` adds the rarer options.", ""]
    listed += ["| command | what it does |", "| --- | --- |"]
    for name, command in commands().items():
        first, _, rest = (command.help or "").strip().partition("\n")
        listed.append(f"| [`specbench {name}`]({name}.md) | {_cell(first)} |")
        yield name, "\n".join([f"# specbench {name}", "", first, rest, "", *_options(command.params)])
    yield "index", "\n".join([*listed, ""])


def _options(parameters: Sequence[Any]) -> Iterator[str]:
    yield from ("| option | value | default | what it does |", "| --- | --- | --- | --- |")
    for each in parameters:
        named = ", ".join(f"`{flag}`" for flag in [*each.opts, *each.secondary_opts] if flag.startswith("-"))
        default = each.show_default if isinstance(getattr(each, "show_default", None), str) else each.default
        shown = "" if default in (None, False, (), []) or callable(default) else f"{default}"
        value = "" if getattr(each, "is_flag", False) or not each.metavar else f"`{each.metavar}`"
        yield f"| {named or f'`{each.name.upper()}`'} | {value} | {_cell(shown)} | {_cell(each.help or '')} |"


def families_page() -> str:
    """What the engine does with the classes of transformers."""
    found = families()
    exact = [one for one in found["families"] if one["result"] == "exact"]
    rest = [one for one in found["families"] if one["result"] != "exact"]
    return "\n".join(
        [
            "# Model families",
            "",
            f"The {len(exact) + len(rest)} causal language model classes of transformers {found['transformers']},",
            "tried as tiny models with random weights in float32. `specbench list families` prints the same.",
            "",
            f"## Exact: {len(exact)}",
            "",
            "The engine decodes the tokens of the model's own `generate`, one row at a time and with random trees in",
            "three slots at once.",
            "",
            ", ".join(f"`{one['model_type']}`" for one in exact) + ".",
            "",
            f"## Others: {len(rest)}",
            "",
            "*Refused*: a run ends with this sentence before it starts. *Not tried*: the command does not make a tiny",
            "model of this class that runs in transformers.",
            "",
            "| model type | | why |",
            "| --- | --- | --- |",
            *(f"| `{one['model_type']}` | {one['result']} | {_plain(one['why'])} |" for one in rest),
            "",
        ]
    )


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def fields_page() -> str:
    """The fields of a run's files, from the models that read and write them."""
    lines = ["# Fields of a run's files", "", "Times are in seconds unless the name says otherwise.", ""]
    for file, models in _FILES.items():
        lines += [f"## `{file}`", ""]
        for model in models:
            lines += [f"### {model.__name__}", "", (model.__doc__ or "").partition("\n\n")[0].replace("\n", " "), ""]
            lines += ["| field | type | what it is |", "| --- | --- | --- |"]
            lines += [
                f"| `{name}` | {_cell(_type(field.annotation))} | {_cell(field.description or '')} |"
                for name, field in model.model_fields.items()
            ]
            lines.append("")
    return "\n".join(lines)


def _type(annotation: Any) -> str:
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return text or re.sub(r"typing\.|specbench(\.\w+)+\.|Annotated\[(\w+),[^\]]*\]", r"\2", str(annotation))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()
