"""``specbench new-method``: write a method that works from the start, into a clone or as a package."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from string import Template

import typer

from specbench import __version__
from specbench.cli import options, output
from specbench.common import EnvironmentRefused, UsageError, make_folder, registry, toml


def new_method(
    name: str = typer.Argument(help="Its name: what --method will take.", metavar="NAME"),
    into: Path = typer.Option(
        None,
        "--into",
        help="Folder for a separate package. Default: methods/NAME in a clone, else a package here.",
    ),
    as_json: bool = options.JSON,
) -> None:
    """Write a working method with its test, as a start for your own."""
    planned = plan(name, into)
    written = planned.write()
    if as_json:
        output.emit_json({"method": name, "wrote": [str(path) for path in written], "next": list(planned.next)})
        return
    # Not through the console, which would wrap commands and paths that users copy.
    typer.echo("\n".join(["Wrote", *(f"  {path}" for path in written), "", "Next", *(f"  {c}" for c in planned.next)]))


_DISTRIBUTION = "specbench-llm"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # a module name without suffixes that a package may not have
_LONGEST = 30  # it is a column of every table

# File in a method's folder -> template; None is an empty file.
_FOLDER = {"__init__.py": None, "method.toml": "method.toml", "decoder.py": "decoder.py", "README.md": "README.md"}


@dataclass(frozen=True)
class Scaffold:
    """A new method.

    Attributes:
        root: folder for all its files.
        files: text by path within ``root``.
        owned: paths within ``root`` that must not exist yet.
        next: commands that try it.
    """

    name: str
    root: Path
    files: Mapping[str, str]
    owned: tuple[str, ...]
    next: tuple[str, ...]

    def write(self) -> list[Path]:
        """Write all files and return their paths, or none if one exists already."""
        for owned in self.owned:
            if (self.root / owned).exists() or (self.root / owned).is_symlink():
                raise UsageError(f"cannot write {self.root / owned}: it exists; choose another name or move it away")
        paths = [self.root / name for name in self.files]
        for path, text in zip(paths, self.files.values(), strict=True):
            try:
                make_folder(path.parent)
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                raise EnvironmentRefused(
                    f"cannot write {path} ({error.strerror}); fix that, remove the written files, and try again"
                ) from error
        return paths


def plan(name: str, into: Path | None = None) -> Scaffold:
    """The files of a new method: in the clone around the working directory, or a package in the folder ``into``.

    Raises UsageError for an invalid or existing name.
    """
    _check(name)
    root = _checkout(Path.cwd()) if into is None else None
    return _package(name, into or Path()) if root is None else _in_tree(name, root)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > _LONGEST:
        raise UsageError(
            f"'{name}' cannot name a method; take lower-case letters, digits and single underscores between them, a "
            f"letter first, at most {_LONGEST} in all, and no Python keyword"
        )
    taken = registry.methods().get(name)
    if taken:
        raise UsageError(f"method '{name}' is already registered by {taken.origin} ({taken.folder}); choose another")


def _checkout(start: Path) -> Path | None:
    """The nearest folder at or above ``start`` that is a clone of specbench."""
    for folder in (start, *start.parents):
        if (folder / "methods").is_dir() and (folder / "tests" / "methods").is_dir():
            try:
                project = toml.read(folder / "pyproject.toml", "mend it").get("project", {})
            except UsageError:  # another project with folders of these names
                continue
            if isinstance(project, dict) and project.get("name") == _DISTRIBUTION:
                return folder
    return None


def _in_tree(name: str, root: Path) -> Scaffold:
    folder, test = f"methods/{name}", f"tests/methods/test_{name}.py"
    words = {"name": name}
    files = {f"{folder}/{file}": _fill(template, words) for file, template in _FOLDER.items()}
    files[test] = _fill("test.py", words)
    tests = f"python -m pytest {test} tests/contract -k {name}"
    shown = _shown(root)
    commands = [f"cd {shlex.quote(str(shown))}"] if shown != Path() else []
    return Scaffold(name, shown, files, (folder, test), (*commands, tests, _try(name)))


def _package(name: str, into: Path) -> Scaffold:
    distribution, package = f"specbench-{name.replace('_', '-')}", f"specbench_{name}"
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        pass
    else:  # specbench's own is one of them: a method named llm
        raise UsageError(f"a package {distribution} is installed already; choose another name")
    words = {"name": name, "package": package, "distribution": distribution, "version": __version__}
    files = {"pyproject.toml": _fill("pyproject.toml", words)}
    files |= {f"{package}/{file}": _fill(template, words) for file, template in _FOLDER.items()}
    files[f"tests/test_{name}.py"] = _fill("test.py", words)
    root = into / distribution
    where = shlex.quote(str(root) if into.is_absolute() else f"./{root}")  # pip takes a bare word for a package name
    commands = (f"pip install pytest -e {where}", f"python -m pytest {where}", _try(name))
    return Scaffold(name, root, files, ("",), commands)


def _try(name: str) -> str:
    return f"specbench run --method {name} --task humaneval --limit 8"


def _shown(root: Path) -> Path:
    """The shortest spelling of ``root`` from the working directory."""
    here = Path.cwd()
    return Path(*[".."] * len(here.relative_to(root).parts))


def _fill(template: str | None, words: Mapping[str, str]) -> str:
    if template is None:
        return ""
    text = (Path(__file__).parent / "templates" / f"{template}.tmpl").read_text(encoding="utf-8")
    return Template(text).substitute(words)
