"""Environments that do not fit, and `zarr-dali doctor`.

Each is a folder of packages with a stub of DALI, which an interpreter of a fresh virtual environment sees.
Each gives one message with a remedy; the command's `--help`, `--version`, `info` and `doctor` work in all of
them, `info` where there is a core that the machine can load.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import zarr_dali
from zarr_dali import _environment, _plugin, _shim
from zarr_dali._doctor import findings, machine, text

ROOT = Path(__file__).parents[2]
PACKAGE = Path(zarr_dali.__file__).parent
RELEASE = "2.4.0"
INSTALL = f"`pip install nvidia-dali-cuda130=={RELEASE}`"
LIBC = re.search(r"/\S*/libc\.so\.6|/\S*/libc-[\d.]+\.so", Path("/proc/self/maps").read_text())[0]
STUB = "__version__ = '{}'\n"
OLD_GLIBC = "/lib/libc.so.6: version `GLIBC_2.34' not found"
REFUSES = f'def load_library(path): raise RuntimeError("{OLD_GLIBC}")\n'


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory):
    """Python of an environment without packages."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    return folder / "bin/python"


@pytest.fixture
def site(tmp_path):
    """A folder of packages with zarr_dali and what its command needs, but without DALI."""
    folder = tmp_path / "site"
    package = folder / "zarr_dali"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so", "__pycache__", "shim_sources"))
    (package / "libzarr_dali_core.so").symlink_to(_plugin.core_path())
    # A stub: a library that every process has.
    (package / "shims").mkdir(exist_ok=True)
    (package / "shims" / f"libzarr_dali_{RELEASE}.so").symlink_to(LIBC)
    (package / "shim_sources").mkdir()
    (package / "shim_sources/shim.cc").write_text("#include <cuda_runtime.h>\n")
    shutil.copy(ROOT / "python/zarr_dali_command.py", folder)
    for name in ("click", "rich", "pygments", "markdown_it", "mdurl", "numpy"):
        (folder / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    libraries = Path(importlib.util.find_spec("numpy").origin).parents[1] / "numpy.libs"
    if libraries.exists():
        (folder / "numpy.libs").symlink_to(libraries)
    add_distribution(folder, "zarr_dali", "9.8.7")
    return folder


def add_distribution(site, name, version):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def add_dali(site, *distributions, release=RELEASE, code=""):
    folder = site / "nvidia/dali"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(STUB.format(release) + code)
    (folder / "include").mkdir()
    (folder / "backend.py").write_text("def TryGetSchema(name): return None\n")
    (folder / "plugin_manager.py").write_text(REFUSES)
    for name, version in distributions:
        add_distribution(site, name, version)


def remove_library(site):
    add_dali(site)
    (site / "zarr_dali/libzarr_dali_core.so").unlink()


def remove_sources(site):
    add_dali(site, (CUDA130, "2.9.1"), release="2.9.1")
    shutil.rmtree(site / "zarr_dali/shim_sources")


def library_of_another_machine(site):
    remove_library(site)
    head = b"\x7fELF" + bytes(14) + (40 if os.uname().machine == "aarch64" else 183).to_bytes(2, "little")
    (site / "zarr_dali/libzarr_dali_core.so").write_bytes(head)


def system_without_glibc(site):
    with (site / "zarr_dali/_environment.py").open("a") as file:
        file.write("glibc = lambda: None\n")


def what_an_uninstallation_leaves(site):
    (site / "nvidia/dali/__pycache__").mkdir(parents=True)
    add_distribution(site, "nvidia_dali_cuda120", RELEASE)


CUDA120, CUDA130 = "nvidia_dali_cuda120", "nvidia_dali_cuda130"
NIGHTLY, NIGHTLY_RELEASE = "nvidia_dali_nightly_cuda130", "2.5.0.dev20261101"
UNINSTALL = "`pip uninstall -y nvidia-dali-cuda120`, then "
INSTALL_120 = f"`pip install nvidia-dali-cuda120=={RELEASE}`"
LACKS = f"has no library for NVIDIA DALI {{}}, which is installed (it has those for {RELEASE})"
COMPILER = "install one (`apt install g++`, `dnf install gcc-c++`, `conda install -c conda-forge gxx`), or "
STATES = {
    "none": (lambda site: None, ["which is not installed", INSTALL]),
    "two": (
        lambda site: add_dali(site, (CUDA120, RELEASE), (CUDA130, RELEASE)),
        [
            "nvidia-dali-cuda120 and nvidia-dali-cuda130 are installed in one place",
            f"`pip uninstall -y nvidia-dali-cuda120 nvidia-dali-cuda130`, then {INSTALL}",
        ],
    ),
    "no compiler for another release": (
        lambda site: add_dali(site, (CUDA130, "2.9.1"), release="2.9.1"),
        [LACKS.format("2.9.1"), "because there is no C++ compiler (g++)", COMPILER + INSTALL],
    ),
    "no compiler, for CUDA 12": (
        lambda site: add_dali(site, (CUDA120, "2.9.1"), release="2.9.1"),
        [LACKS.format("2.9.1"), "because there is no C++ compiler (g++)", COMPILER + INSTALL_120],
    ),
    "old release": (
        lambda site: add_dali(site, (CUDA130, "1.50.0"), release="1.50.0"),
        [LACKS.format("1.50.0"), "releases before 2.0 are too old", f": {INSTALL}"],
    ),
    "old release without metadata": (
        lambda site: add_dali(site, release="1.50.0"),
        [LACKS.format("1.50.0"), f": {INSTALL}"],
    ),
    "ended distribution": (
        lambda site: add_dali(site, ("nvidia_dali_cuda110", "1.50.0"), release="1.50.0"),
        [LACKS.format("1.50.0"), f": `pip uninstall -y nvidia-dali-cuda110`, then {INSTALL}"],
    ),
    "no compiler for a nightly build": (
        lambda site: add_dali(site, (NIGHTLY, NIGHTLY_RELEASE), release=NIGHTLY_RELEASE),
        [LACKS.format(NIGHTLY_RELEASE), f"`pip uninstall -y nvidia-dali-nightly-cuda130`, then {INSTALL}"],
    ),
    "what is left": (what_an_uninstallation_leaves, ["which is not installed", UNINSTALL + INSTALL_120]),
    "damaged": (
        lambda site: add_dali(site, (CUDA130, RELEASE), code="from nvidia.dali import nothing\n"),
        ["cannot be imported", f"`pip install --force-reinstall --no-deps nvidia-dali-cuda130=={RELEASE}`"],
    ),
    "damaged nightly build": (
        lambda site: add_dali(site, (NIGHTLY, NIGHTLY_RELEASE), code="from nvidia.dali import nothing\n"),
        [
            "cannot be imported",
            "`pip install --force-reinstall --no-deps --extra-index-url "
            "https://developer.download.nvidia.com/compute/redist/nightly "
            f"nvidia-dali-nightly-cuda130=={NIGHTLY_RELEASE}`",
        ],
    ),
    "damaged by an interrupted upgrade": (
        lambda site: add_dali(site, (CUDA130, "2.3.0"), (CUDA130, RELEASE), code="import nvidia.dali.no\n"),
        [
            "cannot be imported",
            f"{', '.join(['`pip uninstall -y nvidia-dali-cuda130`'] * 2)}, then {INSTALL}",
        ],
    ),
    "what it needs is missing": (
        lambda site: add_dali(site, (CUDA120, "2.0.0"), code="import nothing_of_that_name\n"),
        ["cannot be imported", "`pip install nvidia-dali-cuda120==2.0.0`"],
    ),
    "no library": (remove_library, ["libzarr_dali_core.so is missing", _environment.AGAIN]),
    "no sources for another release": (
        remove_sources,
        [LACKS.format("2.9.1"), "shim_sources is missing", f"{_environment.AGAIN}, or {INSTALL}"],
    ),
    "no glibc": (system_without_glibc, ["need glibc", "use a system or container with glibc"]),
    "another machine": (library_of_another_machine, ["is built for", "build zarr-dali from source"]),
    "old glibc": (add_dali, ["cannot be loaded", "needs a system with glibc 2.34 or newer"]),
}


def command(interpreter, site, *words, env=None):
    return subprocess.run(
        [interpreter, "-m", "zarr_dali_command", *words],
        # Without PATH there is no compiler.
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "XDG_CACHE_HOME": str(site / "cache"),
            "PATH": "",
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


QUICK = ("none", "two", "old glibc")
WITHOUT_CORE = ("no library", "another machine", "no glibc")
SEEN_LATE = tuple(state for state in STATES if "damaged" in state or state == "old glibc")
SEEN_LATE += ("what it needs is missing",)
"""States that are only seen when DALI is imported, which `info` does not do."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return zarr_dali.example_store(tmp_path_factory.mktemp("store") / "weather.zarr", steps=4)


@pytest.mark.parametrize(
    "state", [state if state in QUICK else pytest.param(state, marks=pytest.mark.full) for state in STATES]
)
def test_wrong_environments(interpreter, site, tmp_path, store, state):
    make, parts = STATES[state]
    make(site)
    loads = command(interpreter, site, "bench", store)
    assert loads.returncode == 1 and loads.stdout == ""
    (line,) = loads.stderr.strip().splitlines()
    assert line.startswith("Error: ") and all(part in line for part in parts), line
    for word, said in (("--help", "doctor"), ("--version", "9.8.7")):
        done = command(interpreter, site, word)
        assert done.returncode == 0 and said in done.stdout and done.stderr == ""
    info = command(interpreter, site, "info", store, "--dtype", "float16")
    if state in WITHOUT_CORE:
        assert info.returncode == 1 and info.stderr.strip() == line
    else:
        assert info.returncode == 0 and info.stdout == str(zarr_dali.info(store, dtype="float16")) + "\n"
        said = line.replace("Error: ", "Nothing can be read before this is mended: ")
        assert info.stderr.strip() == ("" if state in SEEN_LATE else said)
    doctor = command(interpreter, site, "doctor", "--json")
    assert doctor.returncode == 1, doctor.stderr
    said = json.loads(doctor.stdout)
    assert f"Error: {said['plugin']['problem']}" == line
    assert said["findings"][0]["kind"] == "broken"
    # What is wrong and the remedy, taken apart.
    assert parts[-1].removeprefix(": ") in said["findings"][0]["remedy"]
    page = text.page(said, [findings.Finding(**one) for one in said["findings"]])
    assert "Does not work" in page and max(map(len, page.splitlines())) <= 80 + len(str(site))


def test_nightly_releases_are_replaced():
    """They have the same files, and versions of their own."""
    found = {"nvidia-dali-nightly-cuda120": ["2.9"]}
    problem = _environment.other_release("0", [RELEASE], "2.9", found, "why", "")
    assert problem.remedy == f"`pip uninstall -y nvidia-dali-nightly-cuda120`, then {INSTALL_120}"


@pytest.mark.parametrize("found", [(), ("nvidia-dali-cuda120", "nvidia-dali-cuda130")], ids=["none", "two"])
@pytest.mark.parametrize(
    "cuda, name", [(11080, "cuda120"), (12020, "cuda120"), (13000, "cuda130"), (None, "cuda130")]
)
def test_the_driver_says_which_dali_is_to_be_installed(monkeypatch, tmp_path, cuda, name, found):
    class Driver:
        def cuDriverGetVersion(self, number):
            number._obj.value = cuda
            return 0

    def load(library):
        if cuda is None:
            raise OSError
        return Driver()

    monkeypatch.setattr(_environment.ctypes, "CDLL", load)
    monkeypatch.setattr(_environment, "dali_folder", lambda: tmp_path / "nvidia/dali" if found else None)
    monkeypatch.setattr(_environment, "distributions", lambda _: {one: [RELEASE] for one in found})
    remedy = _environment.problem("0", RELEASE, zarr_dali.library_path()).remedy
    first = f"`pip uninstall -y {' '.join(found)}`, then " if found else ""
    asks = "" if cuda else " (nvidia-dali-cuda120 for a driver of CUDA 12)"
    assert remedy == f"{first}`pip install nvidia-dali-{name}=={RELEASE}`{asks}"


def fake_wheel(folder, name, version):
    """A wheel of a distribution of DALI: all of them have the same files."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        "nvidia/dali/__init__.py": STUB.format(version),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]))
    return path


@pytest.mark.parametrize(
    "installed",
    [
        pytest.param([(CUDA120, "1.50.0")], marks=pytest.mark.full),
        pytest.param([(CUDA130, "1.50.0")], marks=pytest.mark.full),
        [(CUDA120, "2.4.0"), (CUDA130, "2.4.0")],
        pytest.param([(CUDA120, "2.3.0"), (CUDA120, "2.4.0"), (CUDA130, "2.4.0")], marks=pytest.mark.full),
        [(CUDA130, "2.3.0"), (CUDA130, "2.4.0")],
    ],
    ids=["old release for CUDA 12", "old release", "two", "two and an interrupted upgrade", "interrupted"],
)
def test_remedies_work(tmp_path, monkeypatch, installed):
    """pip does what the message says, with wheels that share their files as DALI's do; then all is well."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python"
    (folder,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    links = tmp_path / "links"
    links.mkdir()
    for name in (CUDA120, CUDA130):
        fake_wheel(links, name, RELEASE)

    def pip(*words):
        offline = ["--no-index", "--find-links", links] if words[0] == "install" else []
        program = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
        done = subprocess.run([*program, *words, *offline], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    for name, version in installed:
        before = list(folder.glob(f"{name}-*.dist-info"))
        kept = [shutil.copytree(one, tmp_path / one.name) for one in before]
        pip("install", str(fake_wheel(links, name, version)))
        # An upgrade that was interrupted does not remove what pip noted of the former version.
        for one in kept:
            shutil.copytree(one, folder / one.name)
    init = folder / "nvidia/dali/__init__.py"
    monkeypatch.setattr(_environment, "dali_folder", lambda: init.parent if init.is_file() else None)
    library = zarr_dali.library_path()
    problem = _environment.problem("0", RELEASE, library)
    found = _environment.distributions(folder)
    assert sum(map(len, found.values())) == len(installed)
    assert (problem is None) == (len(found) == 1)
    if problem is None and len(installed) > 1:
        packages = {name: " and ".join(versions) for name, versions in found.items()}
        (problem,) = findings.of(FINE | {"packages": packages})
    elif problem is None:
        problem = _environment.other_release("0", [RELEASE], installed[0][1], found, "too old", "")
    for words in re.findall(r"`pip (.*?)`", problem.remedy):
        pip(*words.split())
    assert _environment.problem("0", RELEASE, library) is None
    assert init.read_text() == STUB.format(RELEASE)
    assert list(map(len, _environment.distributions(folder).values())) == [1]


def test_distributions_of_dali(tmp_path):
    """Several versions of one are one distribution; others with DALI in their names are none of them."""
    one = ("nvidia_dali_cuda120-1.50.0", "nvidia_dali_cuda120-1.51.0", "NVIDIA.DALI_cuda120-1.49.0")
    for name in (*one, "nvidia_dali_tf_plugin_cuda130-2.4.0", "numpy-2.0.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    versions = ["1.49.0", "1.50.0", "1.51.0"]
    assert _environment.distributions(tmp_path) == {"nvidia-dali-cuda120": versions}
    (tmp_path / "nvidia_dali_nightly_cuda130-2.4.0.dist-info").mkdir()
    assert len(_environment.distributions(tmp_path)) == 2


@pytest.mark.parametrize(
    "patched, words",
    [({"glibc": lambda: None}, "musl"), ({"sys": type("other", (), {"platform": "darwin"})}, "darwin")],
    ids=["musl", "macOS"],
)
def test_other_platforms(monkeypatch, patched, words):
    for name, value in patched.items():
        monkeypatch.setattr(_environment, name, value)
    problem = _environment.problem("0", RELEASE, zarr_dali.library_path())
    assert words in problem.what and problem.remedy.startswith("use a ")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.skipif(Path("/usr/local/cuda/include").exists(), reason="the headers of CUDA are there")
@pytest.mark.parametrize(
    "name, wheels", [(CUDA120, "nvidia-cuda-runtime-cu12"), (CUDA130, "nvidia-cuda-runtime")]
)
def test_headers_to_compile_with(interpreter, site, name, wheels):
    """With a compiler and without the headers of CUDA: the wheels that have them."""
    add_dali(site, (name, "2.9.1"), release="2.9.1")
    env = {"PATH": os.environ["PATH"], "CUDA_HOME": "", "CUDA_PATH": ""}
    (line,) = command(interpreter, site, "bench", "x", env=env).stderr.strip().splitlines()
    assert "because the CUDA header cuda_runtime.h is not found" in line
    assert f"`pip install {wheels} " in line and "CUDA_HOME" in line


@pytest.mark.parametrize("broken", ["readable by all", "no folder"])
def test_cache_that_cannot_be_used(monkeypatch, tmp_path, broken):
    """Libraries are loaded from no folder that others can write to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if broken == "no folder":
        (tmp_path / "zarr-dali").write_text("")
    else:
        folder = tmp_path / "zarr-dali/shims"
        folder.mkdir(parents=True)
        monkeypatch.setattr(Path, "chmod", lambda *_: None)
        os.chmod(folder, 0o777)
    with pytest.raises(_shim.Impossible) as caught:
        _shim._cache()
    assert "XDG_CACHE_HOME" in caught.value.remedy


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_shim_is_compiled_once(monkeypatch, tmp_path, capfd):
    """The wheel's sources compile against the installed DALI; the result is in the cache and loads. A second
    time nothing is compiled; other sources give another file."""
    if not (sources := PACKAGE / "shim_sources").is_dir():
        pytest.skip("no wheel: the package has no sources of the shim")
    import nvidia.dali

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dali = Path(nvidia.dali.__file__).parent
    arguments = (_plugin.core_path(), dali, nvidia.dali.__version__, "13")
    shim = _shim.compiled(sources, *arguments)
    assert shim.is_relative_to(tmp_path / "cache/zarr-dali/shims")
    assert f"compiling for DALI {nvidia.dali.__version__}, once" in capfd.readouterr().err
    monkeypatch.setenv("CXX", "true")
    assert _shim.compiled(sources, *arguments) == shim and capfd.readouterr().err == ""
    other = shutil.copytree(sources, tmp_path / "other")
    (other / "more.cc").write_text("")
    with pytest.raises(OSError):  # `true` compiles to nothing
        _shim.compiled(other, *arguments)
    program = f"""
import ctypes, nvidia.dali.fn as fn
from nvidia.dali import plugin_manager, pipeline_def
plugin_manager.load_library({str(shim)!r})
import nvidia.dali
assert hasattr(fn.readers, "zarr")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- without a driver, nvCOMP or DALI ---------------------------------------------------------------


@pytest.mark.parametrize("lacking", ["11080", "12020", "nvCOMP"])
def test_commands_without_a_driver_of_today(monkeypatch, tmp_path, store, lacking):
    """An old driver, one of CUDA 12 and no nvCOMP change nothing but what `info` says of GPU memory."""
    if lacking == "nvCOMP":
        monkeypatch.setenv("ZARR_DALI_NVCOMP_LIBRARY", str(tmp_path / "none.so"))
    elif shutil.which("gcc") is None:
        pytest.skip("no gcc, with which the stub of a driver is made")
    else:
        build = ["gcc", "-shared", "-fPIC", f"-DRELEASE={lacking}", "-DCAPABILITY=70"]
        source, library = ROOT / "tests/driver/libcuda.c", tmp_path / "libcuda.so.1"
        subprocess.run([*build, "-o", library, source], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    printed = {}
    for words in (["--help"], ["--version"], ["info", store], ["info", "--device", "cpu", store]):
        program = [sys.executable, "-m", "zarr_dali_command", *words]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        printed[words[-2 if "--device" in words else 0]] = done.stdout
    assert printed["cpu"] == f"{zarr_dali.info(store, device='cpu')}\n"
    assert "t2m" in printed["info"]
    words = "the driver is for CUDA 11.8, older than 12.0"
    assert (words in re.sub(r"\s+", " ", printed["info"])) == (lacking == "11080")


def test_commands_without_dali(monkeypatch, tmp_path, store):
    """`example`, `statistics`, `rechunk` and `profile` need the core only."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('nvidia.dali'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(*words):
        program = [sys.executable, "-m", "zarr_dali_command", *words]
        return subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    assert "needs NVIDIA DALI" in run("bench", store).stderr
    for words in (
        ["example", "weather.zarr", "--steps", "4"],
        ["example", "--plate", "plate.zarr"],
        ["statistics", "weather.zarr", "--output", "statistics.json"],
        ["rechunk", "weather.zarr", "copy.zarr", "--chunks", "time=2", "--verify"],
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr
    assert "t2m" in json.loads((tmp_path / "statistics.json").read_text())
    assert zarr_dali.info(tmp_path / "copy.zarr").arrays
    assert run("profile", "none.sqlite").stderr == "Error: there is no file none.sqlite\n"


# --- doctor ---------------------------------------------------------------------------------------

STUB_DRIVER = """
int cuDriverGetVersion(int *version) { *version = %d; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { name[0] = 'X'; name[1] = 0; return 0; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 3ul << 30; return 0; }
int cuDeviceGetPCIBusId(char *bus, int length, int device) { bus[0] = 0; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
  *value = which == 75 ? 9 : which == 136 ? 6 : 0;
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc, with which the stub of a driver is made")
@pytest.mark.parametrize("version, old", [(11080, True), (12020, False), (13000, False)])
def test_driver(monkeypatch, tmp_path, version, old):
    """A stub in place of the driver: an old one is named, of another its GPU."""
    (tmp_path / "cuda.c").write_text(STUB_DRIVER % version)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    driver = machine._answer(machine._start("driver"))
    assert driver["cuda"] == f"{version // 1000}.{version % 1000 // 10}"
    gpu = {"name": "X", "memory_bytes": 3 << 30, "compute_capability": [9, 0], "bus": ""}
    assert driver["gpus"] == [gpu | {"decompression_engine": ["snappy", "lz4"]}]
    packages = {f"nvidia-dali-cuda{version // 1000}0": "2.4.0"}
    facts = machine.examine() | {"packages": packages}
    broken = [one for one in findings.of(facts) if one.kind == "broken"]
    if old:
        assert broken[0].what == "GPU backend: the driver is for CUDA 11.8, older than 12.0"
        assert "525" in broken[0].remedy
    else:
        assert broken == []
        assert "GPU 0         X, 3.0 GiB, compute capability 9.0" in text.page(facts, [])


def test_doctor_on_this_machine(monkeypatch, tmp_path):
    """The plugin is loaded; no line is too long but for paths; the home folder is not shown."""
    monkeypatch.setenv("HOME", str(PACKAGE.parent))
    facts = machine.examine()
    assert facts["plugin"] == {"loaded": f"~/{zarr_dali.library_path().relative_to(PACKAGE.parent)}"}
    assert facts["cores"]["usable"] == len(os.sched_getaffinity(0))
    assert str(PACKAGE.parent) not in json.dumps(facts)
    assert max(map(len, text.page(facts, findings.of(facts)).splitlines())) <= 80


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_a_container(monkeypatch, tmp_path, version):
    """The smallest limit of the control group and those above it, of both versions."""
    own = tmp_path / "own"
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUPS", own)
    if version == 2:
        own.write_text("0::/a/b\n")
        files = {"a/b/memory.max": "max", "a/memory.max": "2147483648", "a/b/cpu.max": "150000 100000"}
    else:
        own.write_text("5:memory:/a/b\n4:cpu,cpuacct:/a/b\n0::/\n")
        unlimited = str((1 << 63) - 4096)
        files = {
            "memory/a/b/memory.limit_in_bytes": unlimited,
            "memory/a/memory.limit_in_bytes": "2147483648",
        }
        files |= {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "150000", "memory/memory.limit_in_bytes": unlimited}
    for name, content in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    assert machine._memory()["limit_bytes"] == 2 << 30
    assert machine._quota() == 1.5


FINE = {
    "plugin": {"loaded": "x"},
    "packages": {"nvidia-dali-cuda130": "2.4.0", "numpy": "2.0"},
    "driver": {"cuda": "13.0", "gpus": [{"name": "X", "compute_capability": [9, 0], "near_cores": "0-3"}]},
    "nvcomp": {"loaded": "x", "release": "5.3.0"},
    "gds": {"direct": True, "why": ""},
    "environment": {},
    "cores": {"there": 4, "usable": 4, "list": "0-3", "quota": None},
    "memory": {"bytes": 8 << 30, "limit_bytes": None},
    "files": {"open_files": [65536, None], "shm_bytes": 8 << 30},
}


@pytest.mark.parametrize(
    "changed, kind, words",
    [
        ({"driver": {"problem": "libcuda.so.1 is not found"}}, "broken", "libcuda"),
        (
            {"packages": {"nvidia-dali-cuda130": "2.3.0 and 2.4.0"}},
            "note",
            "nvidia-dali-cuda130 2.3.0 and 2.4.0",
        ),
        ({"driver": {"cuda": "13.0", "gpus": []}}, "broken", "no GPU"),
        (
            {"driver": FINE["driver"] | {"cuda": "12.2"}},
            "broken",
            "DALI is for CUDA 13, and the driver for CUDA 12.2",
        ),
        (
            {"packages": {"nvidia-dali-nightly-cuda130": "2.5.0.dev1 and 2.5.0.dev2"}},
            "note",
            "nvidia-dali-nightly-cuda130 2.5.0.dev1 and 2.5.0.dev2",
        ),
        ({"nvcomp": {"problem": "no file"}}, "note", "nvCOMP is not found"),
        ({"nvcomp": {"loaded": "x", "release": "5.0.2"}}, "note", "5.0.2 is too old"),
        ({"gds": {"direct": False, "why": "no nvidia-fs"}}, "note", "no nvidia-fs"),
        ({"cores": {"there": 8, "usable": 4, "list": "0-3", "quota": None}}, "slow", "4 of 8 cores"),
        ({"cores": {"there": 4, "usable": 4, "list": "0-3", "quota": 1.5}}, "slow", "1.5 cores"),
        ({"cores": {"there": 4, "usable": 4, "list": "8-11", "quota": None}}, "slow", "near GPU 0"),
        ({"memory": {"bytes": 8 << 30, "limit_bytes": 2 << 30}}, "note", "2.0 GiB of 8.0 GiB"),
        ({"files": {"open_files": [1024, 8192], "shm_bytes": 8 << 30}}, "slow", "1024 open files"),
        ({"files": {"open_files": [65536, None], "shm_bytes": 64 << 20}}, "note", "64 MiB"),
        ({"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "slow", "every kernel wait"),
    ],
)
def test_findings(changed, kind, words):
    assert findings.of(FINE) == []
    (found,) = findings.of(FINE | changed)
    assert found.kind == kind and words in found.what and found.remedy


@pytest.mark.parametrize(
    "name, installs", [("", "nvidia-dali-cuda120==2.4.0"), ("-nightly", "nvidia-dali-cuda120")]
)
def test_dali_for_another_cuda_than_the_driver(name, installs):
    """Named is what is installed, and nightly builds have no release of the same version."""
    packages = {f"nvidia-dali{name}-cuda130": "2.4.0"}
    (found,) = findings.of(FINE | {"packages": packages, "driver": FINE["driver"] | {"cuda": "12.2"}})
    uninstalls = f"`pip uninstall -y nvidia-dali{name}-cuda130`"
    assert found.remedy == f"{uninstalls}, then `pip install {installs}`, or a newer driver"


def test_nvcomp_is_that_of_the_cuda_that_dali_is_for():
    """Without a driver too; and by force, since pip may take one whose files are gone for installed."""
    none = {"driver": {"problem": "libcuda.so.1 is not found"}, "nvcomp": {"problem": "no file"}}
    for cuda in (12, 13):
        facts = FINE | none | {"packages": {f"nvidia-dali-cuda{cuda}0": "2.4.0"}}
        (remedy,) = [one.remedy for one in findings.of(facts) if "nvCOMP" in one.what]
        assert remedy == f'`pip install --force-reinstall --no-deps "nvidia-libnvcomp-cu{cuda}>=5.1,<7"`'
        assert remedy.split()[-1] in text.page(machine.examine(), findings.of(facts))


def test_releases_of_nvcomp_are_those_of_the_core():
    source = (ROOT / "nvcomp-sys/src/lib.rs").read_text()
    (found,) = re.findall(r"OLDEST: Version = Version \{ major: (\d+), minor: (\d+), patch: (\d+) \}", source)
    assert tuple(map(int, found)) == findings.OLDEST_NVCOMP
    (sonames,) = re.findall(r"const SONAMES: .* = \[(.*)\];", source)
    files = [f'"libnvcomp.so.{release}"' for release in machine.NVCOMP_RELEASES]
    assert sonames.split(", ") == files
