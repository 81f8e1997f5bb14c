"""The walls between files: no import circles in the Rust core and in the Python package, rooms without files.

The checks read sources as text. `mod` declarations and re-exports are no imports: what is imported through a
`mod.rs` counts for the file that defines it.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_FILES = ("decode/", "info.rs", "plan/", "reader/")
"""Rooms under `src` that get bytes from elsewhere and open no files."""

# Comments and literals, but no lifetimes.
RUST_TEXT = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?c?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""",
    re.DOTALL,
)
VISIBLE = r"(?:pub(?:\([^)]*\))? )"
RUST_ITEM = re.compile(
    rf"^{VISIBLE}?(?:unsafe |const |async )*"
    r"(?:struct|enum|union|trait|type|static|const|fn|macro_rules!) (?:mut )?(\w+)",
    re.MULTILINE,
)
RUST_MODULE = re.compile(rf"^{VISIBLE}?mod (\w+);", re.MULTILINE)
RUST_USE = re.compile(rf"\b({VISIBLE})?use ([^;]+);")
RUST_PATH = re.compile(r"(?<![\w:])\w+(?:::\w+)+")
TEST_ONLY = "#[cfg(test)]"


def code_of(text):
    """Rust code without comments, literals and the items under `#[cfg(test)]`."""
    code = RUST_TEXT.sub(" ", text)
    while (start := code.find(TEST_ONLY)) >= 0:
        depth, end = 0, start + len(TEST_ONLY)
        while end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
            if depth == 0 and code[end - 1] in "};":
                break
        code = code[:start] + code[end:]
    return code


def named_by(tree, prefix=()):
    """The (local name, path) pairs of the tree behind `use`."""
    head, brace, inner = tree.strip().partition("{")
    if brace:
        prefix = (*prefix, *filter(None, head.strip().split("::")))
        depth, part = 0, ""
        for letter in inner.rpartition("}")[0] + ",":
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                if part.strip():
                    yield from named_by(part, prefix)
                part = ""
            else:
                part += letter
        return
    path, _, name = head.partition(" as ")
    path = (*prefix, *path.strip().split("::"))
    if path[-1] == "self" and len(path) > 1:
        path = path[:-1]
    yield name.strip() or path[-1], path


class RustFile:
    """What a file defines, imports and uses."""

    def __init__(self, path, root):
        self.file = path.relative_to(root).as_posix()
        parts = path.relative_to(root).with_suffix("").parts
        self.module = parts[:-1] if parts[-1] in ("mod", "lib") else parts
        code = code_of(path.read_text())
        self.children = set(RUST_MODULE.findall(code))
        self.items = set(RUST_ITEM.findall(code))
        uses = [(public, named) for public, tree in RUST_USE.findall(code) for named in named_by(tree)]
        self.names = {name: path for _, (name, path) in uses}
        self.paths = [path for public, (_, path) in uses if not public]
        self.paths += [tuple(path.split("::")) for path in RUST_PATH.findall(RUST_USE.sub("", code))]


class RustCrate:
    """The files under a folder, those only for tests left out."""

    def __init__(self, root):
        files = {file.module: file for file in (RustFile(path, root) for path in root.rglob("*.rs"))}
        self.files = {
            module: file
            for module, file in files.items()
            if all(module[depth] in files[module[:depth]].children for depth in range(len(module)))
        }

    def definer(self, file, path, seen=()):
        """The file that defines what a path means in a file; None for modules and for other crates."""
        if (file.module, path) in seen:
            return None
        seen = (*seen, (file.module, path))
        first, rest = path[0], path[1:]
        if first in ("crate", "self", "super"):
            module = {"crate": (), "self": file.module, "super": file.module[:-1]}[first]
            while rest[:1] == ("super",):
                module, rest = module[:-1], rest[1:]
            return self.definer(self.files[module], rest, seen) if rest else None
        if first in file.children:
            return self.definer(self.files[(*file.module, first)], rest, seen) if rest else None
        if first in file.items:
            return file.file
        meant = file.names.get(first, path)
        return None if meant[0] == first else self.definer(file, (*meant, *rest), seen)

    def imports(self):
        """The files that each file uses something of."""
        return {
            file.file: {self.definer(file, path) for path in file.paths} - {None, file.file}
            for file in self.files.values()
        }


def python_imports(package):
    """The files of a package that each of its files imports, inside functions and for annotations too."""
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}

    def file_of(module):
        names = (
            "/".join((*module[:-1], f"{module[-1]}.py")) if module else "",
            "/".join((*module, "__init__.py")),
        )
        return next((name for name in names if name in files), None)

    imports = {file: set() for file in files}
    for file in files:
        for node in ast.walk(ast.parse((package / file).read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [tuple(alias.name.split(".")) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                here = (package.name, *Path(file).parts[:-1])
                base = here[: len(here) - node.level + 1] if node.level else ()
                base = (*base, *(node.module.split(".") if node.module else ()))
                # A name is a module, or something that the module in front of it defines.
                parts = [(*base, alias.name) for alias in node.names]
                modules = [part if file_of(part[1:]) else base for part in parts]
            found = {file_of(module[1:]) for module in modules if module[0] == package.name}
            imports[file] |= found - {None, file}
    return imports


def circles(imports):
    """Groups of files or folders of one folder that reach one another by imports, as lines of text."""
    graph, because = {}, {}
    for file, others in imports.items():
        for other in others:
            here, there = file.split("/"), other.split("/")
            depth = next(i for i in range(len(here)) if here[: i + 1] != there[: i + 1])
            ends = "/".join(here[: depth + 1]), "/".join(there[: depth + 1])
            graph.setdefault(ends[0], set()).add(ends[1])
            because.setdefault(ends, set()).add(f"{file} -> {other}")

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reached = {place: reach(place) for place in graph}
    return sorted(
        line for (here, there), lines in because.items() if here in reached.get(there, ()) for line in lines
    )


def test_no_import_circles_in_the_core():
    imports = RustCrate(ROOT / "src").imports()
    assert "sampler/domains.rs" in imports["plan/mod.rs"]
    assert circles(imports) == []


def test_no_import_circles_in_the_python_package():
    imports = python_imports(ROOT / "python" / "zarr_dali")
    assert "_info.py" in imports["__init__.py"]
    assert circles(imports) == []


def test_rooms_that_get_bytes_from_elsewhere_open_no_files():
    banned = (("std", "path"), ("std", "fs"), ("std", "os", "fd"), ("std", "os", "unix"))
    opens = [
        f"{file.file}: {'::'.join(path)}"
        for file in RustCrate(ROOT / "src").files.values()
        if file.file.startswith(WITHOUT_FILES)
        for path in file.paths
        if any(path[: len(part)] == part for part in banned)
    ]
    assert opens == []


RUST = {
    "lib.rs": "mod a;\nmod b;\n#[cfg(test)]\nmod only_tests;\n",
    "a/mod.rs": "mod one;\nmod two;\npub use one::One;\npub(crate) use two::{self, Two as Second};\n",
    "a/one.rs": "pub struct One<'a>(&'a str, char);\n// crate::b::of\nconst TEXT: &str = \"crate::b::of\";\n",
    "a/two.rs": "use super::One;\nuse std::{fs, path::{Path, PathBuf}};\npub enum Two {}\n"
    "#[cfg(test)]\nmod tests {\n    use crate::b::of;\n    fn f() {}\n}\n",
    "b.rs": "pub fn of() {}\n",
    "only_tests.rs": "use crate::b::of;\n",
}
"""Files of a crate in which only `two.rs` imports something."""


@pytest.mark.parametrize(
    ("changed", "ring"),
    [
        ({}, []),
        ({"b.rs": "use crate::a::{Second, One};\npub fn of() {}\n"}, []),
        ({"a/one.rs": "pub struct One;\nfn f() -> super::Second {}\n"}, ["a/one.rs", "a/two.rs"]),
        ({"a/one.rs": "use crate::a;\npub struct One(a::two::Two);\n"}, ["a/one.rs", "a/two.rs"]),
        (
            {
                "a/two.rs": "pub struct Two;\nfn f() { crate::b::of() }\n",
                "b.rs": "use crate::a::{Second as Other};\npub fn of() {}\n",
            },
            ["a/two.rs", "b.rs"],
        ),
    ],
)
def test_circles_are_found_in_rust(tmp_path, changed, ring):
    write(tmp_path, RUST | changed)
    crate = RustCrate(tmp_path)
    assert circles(crate.imports()) == around(ring)


def test_what_is_only_for_tests_is_no_part_of_a_file(tmp_path):
    write(tmp_path, RUST)
    crate = RustCrate(tmp_path)
    paths = [("std", "fs"), ("std", "path", "Path"), ("std", "path", "PathBuf"), ("super", "One")]
    assert sorted(crate.files["a", "two"].paths) == paths
    assert ("only_tests",) not in crate.files


@pytest.mark.parametrize(
    ("text", "ring"),
    [
        ("", []),
        ("def f():\n    from package import a\n", ["a.py", "c/d.py"]),
        ("from ..a import A\n", ["a.py", "c/d.py"]),
        ("import package.a\n", ["a.py", "c/d.py"]),
        ("from package.c import e\nimport other.a\n", []),
    ],
)
def test_circles_are_found_in_python(tmp_path, text, ring):
    files = {"__init__.py": "", "a.py": "from package.c.d import D\nA = 1\n", "c/__init__.py": ""}
    write(tmp_path / "package", files | {"c/d.py": f"D = 1\n{text}", "c/e.py": ""})
    assert circles(python_imports(tmp_path / "package")) == around(ring)


def around(ring):
    """The imports from each file of a ring to the next."""
    return sorted(f"{here} -> {there}" for here, there in zip(ring, ring[1:] + ring[:1]))


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
