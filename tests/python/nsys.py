"""Reports of Nsight Systems: made up, in the tables of nsys 2022.4, or recorded where nsys is installed."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, "
    "globalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, "
    "contextId INTEGER, streamId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, "
    "contextId INTEGER, streamId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
}
PUSHED, STARTED, DOMAIN = 59, 60, 75


class Made:
    """A report that is written table by table; times in nanoseconds."""

    def __init__(self, path, tables=tuple(TABLES)):
        self.path, self.tables, self._texts = path, tables, {}
        with closing(sqlite3.connect(path)) as database, database:
            for name in tables:
                database.execute(f"CREATE TABLE {name} ({TABLES[name]})")

    def _write(self, table, **values):
        with closing(sqlite3.connect(self.path)) as database, database:
            marks = ", ".join("?" * len(values))
            database.execute(
                f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", [*values.values()]
            )

    def text(self, value):
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self._write("StringIds", id=self._texts[value], value=value)
        return self._texts[value]

    @staticmethod
    def thread(pid, thread):
        return 1 << 48 | pid << 24 | thread

    def domain(self, pid, number, name):
        self._write(
            "NVTX_EVENTS",
            start=0,
            eventType=DOMAIN,
            text=name,
            globalTid=self.thread(pid, 1),
            domainId=number,
        )

    def name_thread(self, pid, thread, name):
        self._write("ThreadNames", nameId=self.text(name), globalTid=self.thread(pid, thread))

    def range(self, pid, thread, domain, name, start, end, payload=None, registered=True, kind=PUSHED):
        text = {"textId": self.text(name)} if registered else {"text": name}
        self._write(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=kind,
            globalTid=self.thread(pid, thread),
            domainId=domain,
            uint64Value=payload,
            **text,
        )

    def kernel(self, pid, stream, name, start, end):
        where = {"deviceId": 0, "contextId": 1, "streamId": stream, "globalPid": self.thread(pid, 0)}
        self._write("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, shortName=self.text(name), **where)

    def copy(self, pid, stream, start, end, size=0, kind=1):
        where = {"deviceId": 0, "contextId": 1, "streamId": stream, "globalPid": self.thread(pid, 0)}
        self._write("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, bytes=size, copyKind=kind, **where)


def missing():
    """Why nothing can be recorded here, or None."""
    return None if shutil.which("nsys") else "there is no nsys (Nsight Systems) in PATH"


def recorded(command, folder, *options, env=None):
    """Records a command and exports the report; the SQLite file, or a sentence why there is none."""
    words = ["nsys", "profile", *options, "--force-overwrite=true", f"--output={folder / 'report'}", *command]
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=400, env={**os.environ, **(env or {})}
    )
    report, raw = folder / "report.nsys-rep", folder / "report.qdstrm"
    if not report.exists() and raw.exists():
        # Debian's package finds its importer only where it is installed.
        importer = Path(shutil.which("nsys")).resolve().parents[1] / "host-linux-x64" / "QdstrmImporter"
        for folder_of_nsys in Path(shutil.which("nsys")).resolve().parents:
            found = list(folder_of_nsys.glob("**/host-linux-x64/QdstrmImporter"))
            if found or (folder_of_nsys / "usr").is_dir():
                importer = found[0] if found else importer
                break
        if not importer.exists():
            return "nsys left a .qdstrm, and there is no QdstrmImporter beside it"
        subprocess.run(
            [importer, "-i", raw, "-o", report],
            capture_output=True,
            timeout=200,
            env={**os.environ, "LD_LIBRARY_PATH": str(importer.parent)},
        )
    if not report.exists():
        return f"nsys has recorded nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    exported = folder / "report.sqlite"
    words = ["nsys", "export", "--type", "sqlite", "--force-overwrite=true", "--output", exported, report]
    subprocess.run(list(map(str, words)), capture_output=True, timeout=200, check=True)
    return exported
