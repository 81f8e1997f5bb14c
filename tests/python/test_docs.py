"""The documentation and the README: every code block works, and what they repeat is what the sources say.

- Each Python block runs by itself, in a process and an empty folder of its own, so that it can be pasted into
  an interpreter. A text block right behind it is what it prints, with `...` for what varies.
- Of the shell blocks of a page `zarr-dali example`, `info`, `rechunk` and `statistics` run, in their order
  and in an empty folder; of all others it is checked that programs, scripts, targets and options exist.
- `<!-- gpu -->` in front of a block: without a GPU it is only compiled, and its names and arguments checked.
- `<!-- bucket -->` in front of a block: the same everywhere, because it needs a store elsewhere.
- `<!-- ranks: 2 -->` in front of a Python block: torchrun starts it.
- `<!-- shown -->` in front of a block: it is to be looked at only.
"""

import ast
import builtins
import doctest
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch.distributed.run
from markdown_it import MarkdownIt
from nvidia.dali import backend

import zarr_dali.cli
from forked import run_command, run_script
from programs import help_of
from reading import gpu_problem, run_python
from test_readers import load_generator
from tiers import quick
from zarr_dali import readers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
WITH_CODE = ["README.md", *(f"docs/{page}" for page in PAGES)]
"""What has blocks of code."""
QUICK_PAGES = ("README.md", "docs/index.md", "docs/getting-started.md")
"""Those of which the quick tier runs the blocks of Python."""
MARK = re.compile(r"<!-- (gpu|bucket|shown|ranks: \d+) -->\s*")
RUN_COMMANDS = ("example", "info", "rechunk", "statistics")
"""Subcommands of `zarr-dali` that run; `bench` takes too long."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    code: str
    mark: str = ""
    printed: "Block | None" = None
    """What it prints."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@lru_cache
def blocks(page):
    """The blocks of a page, each with the mark in front of it."""
    found, mark = [], ""
    for token in MarkdownIt().parse((ROOT / page).read_text()):
        if token.type == "html_block":
            marked = MARK.fullmatch(token.content)
            mark = marked[1] if marked else ""
        elif token.type == "fence":
            block = Block(page, token.map[0] + 2, token.info.strip(), token.content, mark)
            if block.language == "text" and found and found[-1].language != "text":
                found[-1] = replace(found[-1], printed=block)
            found.append(block)
            mark = ""
        else:
            assert page == "README.md" or token.type != "code_block", (
                f"{page}:{token.map[0] + 1}: indented code is not tested"
            )
            mark = ""
    return found


def all_blocks(language):
    every = [block for page in WITH_CODE for block in blocks(page)]
    return [block for block in every if block.language == language and block.mark != "shown"]


def of_place(block):
    return block.place


# --- Python ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b, marks=[] if b.page in QUICK_PAGES else pytest.mark.full)
        for b in all_blocks("python")
        if not b.mark.startswith("ranks")
    ],
    ids=of_place,
)
def test_block_runs_by_itself(block, tmp_path, monkeypatch):
    """Pasted into an empty folder, and what it prints is what the page says."""
    if block.mark == "bucket" or (block.mark == "gpu" and gpu_problem() is not None):
        pytest.skip("it needs a GPU or a store elsewhere; see test_blocks_import_what_they_use")
    monkeypatch.chdir(tmp_path)
    done = run_block(block)
    assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
    if block.printed:
        assert_printed(block.printed, done.stdout)


def run_block(block):
    if block.mark != "gpu":
        return run_script(block.code, name=block.page, first_line=block.line)
    # What DALI and the interpreter do behind the last line is the matter of other tests.
    return run_python(f"{block.code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)")


def assert_printed(block, printed):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(block.code, printed, options), (
        f"{block.place}: printed was\n{printed}"
    )


@pytest.mark.parametrize("block", all_blocks("python"), ids=of_place)
def test_blocks_import_what_they_use(block):
    """Whether or not a block runs here, it compiles, and each name comes from the block or from Python."""
    tree = ast.parse(block.code, block.place)
    known = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used <= known, f"{block.place}: {sorted(used - known)} come from nowhere"


@pytest.mark.parametrize(
    "page",
    quick(
        [page for page in WITH_CODE if any(b.language == "sh" for b in blocks(page))],
        "docs/getting-started.md",
        "docs/index.md",
    ),
)
def test_commands_of_a_page_run(page, tmp_path, monkeypatch):
    """In their order, in a folder that is empty at first."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.language != "sh" or block.mark in ("gpu", "shown"):
            continue
        printed = ""
        for command in commands_to_run(block):
            done = run_command(*command)
            assert done.returncode == 0, f"{block.place}: {command}: {done.stderr or done.stdout}"
            printed += done.stdout
        if block.printed:
            assert_printed(block.printed, printed)


def commands_to_run(block):
    for words in commands(block):
        if words[0] == "zarr-dali" and words[1] in RUN_COMMANDS:
            yield words[1:]


@pytest.mark.full
@pytest.mark.parametrize(
    "block", [b for b in all_blocks("python") if b.mark.startswith("ranks")], ids=of_place
)
def test_script_of_ranks(block, tmp_path):
    """A script that torchrun starts, with the CPU backend."""
    (tmp_path / "script.py").write_text(block.code)
    ranks = block.mark.removeprefix("ranks: ")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            ranks,
            "script.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", all_blocks("python"), ids=of_place)
def test_arguments_of_readers(block):
    """Whether or not a block runs here: it compiles, and its readers get arguments that they have."""
    schema = backend.GetSchema("readers__Zarr")
    of_reader = {name for name in schema.GetArgumentNames() if not schema.IsDeprecatedArg(name)}
    of_loader = set(zarr_dali.Loader.__init__.__kwdefaults__) | {"path", "arrays", "batch_size"}
    known = {
        "zarr": of_reader | {"device", "name"},
        "zarr_reader": of_reader | {"device", "name"},
        "Loader": of_reader | of_loader,
    }
    for call in ast.walk(ast.parse(block.code, block.place)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in known:
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            assert given <= known[call.func.attr], f"{block.place}: line {call.lineno} of the block"


def test_blocks_are_of_known_languages():
    assert {block.language for page in WITH_CODE for block in blocks(page)} <= {"python", "sh", "text"}
    assert all_blocks("python") and all_blocks("sh")


# --- shell ----------------------------------------------------------------------------------------

# Options of programs that are not installed where tests run; from the user guide of Nsight Systems 2025 and
# `--help` of cargo-mutants 27.1.
NSYS = {
    "profile": {"--trace", "--output", "--capture-range", "--capture-range-end", "--nvtx-domain-include"},
    "export": {"--type", "--output"},
    "stats": {"--report"},
}
MUTANTS = {
    "--in-place",
    "--profile",
    "--cargo-arg",
    "--timeout",
    "--sharding",
    "--shard",
    "--file",
    "--lib",
    "--skip",
}
EXTERNAL = {"taskset": {"--cpu-list"}, "nvidia-smi": set(), "git": set(), "vmtouch": {"-e"}, "cargo": MUTANTS}


def commands(block):
    """The commands of a shell block as lists of words; comments left out, continued lines joined."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words:
            yield words


@pytest.mark.parametrize("block", all_blocks("sh"), ids=of_place)
def test_shell_commands(block):
    """Programs, scripts, targets and options are there."""
    for words in commands(block):
        check(words, block.place)


def check(words, place):
    program, rest = words[0], words[1:]
    if program == "zarr-dali":
        known = zarr_dali.cli.main.commands[rest[0]].params
        check_options(
            rest[1:], {text for each in known for text in (*each.opts, *each.secondary_opts)}, place
        )
    elif program == "nsys":
        used, command = split(rest[1:])
        check_options(used, NSYS[rest[0]], place)
        if rest[0] == "profile":
            check(command, place)
    elif program == "taskset":
        check(rest[2:], place)
        check_options(rest[:1], EXTERNAL["taskset"], place)
    elif program == "torchrun":
        used, command = split(rest)
        check_options(used, options_in(torch.distributed.run.get_args_parser().format_help()), place)
        check(["python", *command], place)
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), f"{place}: there is no module {rest[1]}"
    elif program == "python" and rest[0] != "your_training.py":
        script = ROOT / rest[0]
        assert script.is_file(), f"{place}: there is no {rest[0]}"
        # One without options may not know `--help` either, and would do its work.
        if any(word.startswith("-") for word in rest[1:]):
            check_options(rest[1:], options_in(help_of(script)), place)
    elif program == "pip":
        assert rest[0] == "install", place
        named = re.findall(r"\[(.*?)\]", " ".join(rest[1:]))
        assert set(",".join(named).split(",")) <= extras() | {""}, place
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in rest if "=" not in word} <= set(targets), place
    elif program == "mkdocs":
        assert rest[0] in ("serve", "build"), place
    elif program != "python":
        assert program in EXTERNAL, f"{place}: {program} is not known to this test"
        check_options(rest, EXTERNAL[program], place)


def split(words):
    """Options with their values in front of a command, and the command."""
    count = 0
    while count < len(words) and words[count].startswith("-"):
        count += 1 if "=" in words[count] or words[count] in ("--standalone",) else 2
    return words[:count], words[count:]


def check_options(words, known, place):
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert used <= known, f"{place}: {sorted(used - known)} are no options"


def options_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


def extras():
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    return set(re.findall(r"^(\w+) = \[", table.partition("\n[")[0], re.MULTILINE))


# --- what pages repeat ----------------------------------------------------------------------------


def test_arguments_page_is_what_the_schema_says():
    generator = load_generator()
    assert generator.PAGE.read_text() == generator.page(), "run python docs/generate.py"


def sources(*patterns):
    """Text of source files as their string literals show it: escapes undone, literals that follow joined."""
    text = "\n".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    text = text.replace('\\"', '"')
    return re.sub(r'\s*"\s*\n\s*f?"|\\\n\s*', "", text)


def test_every_error_has_an_entry():
    """Troubleshooting names each kind of error of the core, and each with a text that is in the sources."""
    page = (DOCS / "troubleshooting.md").read_text()
    errors = (ROOT / "src" / "error" / "mod.rs").read_text()
    body = re.search(r"pub enum Error \{\n(.*?)\n\}\n", errors, re.DOTALL)[1]
    kinds = set(re.findall(r"^    (\w+)", body, re.MULTILINE)) - {"Sticky"}
    entries = re.findall(r"^#### `(.+)`\n\n<!-- (?:error: (\w+)|(python)) -->$", page, re.MULTILINE)
    assert {kind for _, kind, _ in entries if kind} == kinds
    assert len(re.findall(r"^#### ", page, re.MULTILINE)) == len(entries)
    rust, python = sources("src/**/*.rs"), sources("python/zarr_dali/*.py")
    for text, kind, _ in entries:
        for fragment in filter(None, (piece.strip() for piece in text.split("…"))):
            assert fragment in (rust if kind else python), f"{fragment!r} is not in the sources"


def test_counters_that_are_named_are_there():
    page = (DOCS / "profiling.md").read_text()
    named = set(re.findall(r"`((?:ms_waiting|bytes|chunks|cache|device_memory|host_memory)_\w+)`", page))
    core = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    left_out = {name for name in named if not re.search(rf"\b{name.replace('ms_', 'us_')}\b", core)}
    assert len(named) >= 10
    # Arguments are named as well.
    assert left_out <= set(inspect.signature(readers.zarr).parameters)


def test_ranges_are_described():
    """The page about profiling has a row for each NVTX range, by the names that the core gives them."""
    page = (DOCS / "profiling.md").read_text()
    trace = ROOT / "cpp_shim" / "trace.cc"
    names = re.search(r"kStages\{(.*?)\}", trace.read_text(), re.DOTALL)[1]
    for name in re.findall(r'"([^"]+)"', names):
        assert f"| `{name}` |" in page


def test_builds(tmp_path):
    """mkdocs finds no broken link, and no page that is not in the navigation."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in PAGES:
        stem = page.removesuffix(".md")
        html = (tmp_path / "site" / ("" if stem == "index" else stem) / "index.html").read_text()
        assert not re.search(r'(?:href|src)="(?!https?:)[^"]*(?:benches|CHANGELOG)', html)
    front = (tmp_path / "site" / "index.html").read_text()
    (picture,) = re.findall(r'<img [^>]*src="([^"]+)"', front)
    assert (tmp_path / "site" / picture).read_bytes().startswith(b"\x89PNG")


def test_the_reference_has_all_that_is_public():
    named = re.findall(r"^::: zarr_dali\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted([*named, "__version__", "readers"]) == sorted(zarr_dali.__all__)


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CHANGELOG.md",
        "benches/README.md",
        "benches/NOTES.md",
        *(f"docs/{page}" for page in PAGES),
    ],
)
def test_links_lead_to_files(page):
    """Of the repository, as GitHub follows them."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in filter(None, (target for pair in LINK.findall(text) for target in pair)):
        if "://" not in link and not link.startswith("#"):
            assert ((ROOT / page).parent / link.partition("#")[0]).exists(), f"{page}: {link}"


def test_readme_is_short_and_its_blocks_compile():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.encode()) <= 8000
    fences = [token for token in MarkdownIt().parse(readme) if token.type == "fence"]
    assert [token.info for token in fences] == ["python", "python"]
    for number, token in enumerate(fences):
        test_arguments_of_readers(Block("README.md", number, "python", token.content))
    for command in re.findall(r"^    (pip .*|make .*)$", readme, re.MULTILINE):
        check(shlex.split(command, comments=True), "README.md")
