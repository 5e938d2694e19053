"""A real standalone cluster for tests: a master and workers in processes of their own, out of pip's pyspark.

What is run is what a user installs: the real spark-submit.sh, beside it the jobs, the settings and the built wheel.
Only the GPUs are not real: the workers declare them through a discovery script that makes them up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

REPO = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SPARK_HOME = Path(pyspark.__file__).parent
MARK = "DAYBREAK_TEST_CLUSTER"  # stands, with the cluster's folder, in the environment of all its processes
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m -XX:+UseSerialGC -XX:-UsePerfData"


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str

    def kill(self, how: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)


def until(condition: Callable[[], Any], *, seconds: float = 300, what: str = "what was waited for") -> Any:
    """The condition's first value that is true. AssertionError when it takes longer than a machine in trouble would."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds:g} s"
        time.sleep(0.05)
    return value


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def install(folder: Path) -> Path:
    """What a user has: spark-submit.sh, the jobs and the settings of this repository, and as lib/ the built wheel."""
    source, home = folder / "source", folder / "daybreak"
    shutil.copytree(REPO / "lib", source / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy2(REPO / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("daybreak-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home / "lib")
    shutil.copytree(REPO / "conf/spark", home / "conf/spark")
    shutil.copytree(REPO / "jobs", home / "jobs")
    shutil.copy2(REPO / "spark-submit.sh", home)
    return home


def settings(path: Path) -> dict[str, str]:
    """A properties file, as Spark reads it."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


class Worker:
    """A worker and all that it has started: the machine that it stands for."""

    def __init__(self, cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
        self._cluster, self._process, self.log = cluster, process, log
        self.pid = process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def executors(self) -> list[Process]:
        return [process for process in self._cluster.executors() if process.parent == self.pid]

    def kill(self) -> None:
        """The machine is gone: the worker, its executors and their Python processes, with SIGKILL."""
        family = self._cluster.descendants(self.pid)
        self._process.kill()
        for process in family:
            process.kill()
        self._process.wait()


class Driver(subprocess.Popen[str]):
    """spark-submit.sh, which becomes the Python driver. What it says goes into files, so that it never waits."""

    def __init__(self, command: list[str], *, env: dict[str, str], cwd: Path, logs: Path, ui: int) -> None:
        self.out, self.err, self._ui = logs.with_suffix(".out"), logs.with_suffix(".err"), ui
        with self.out.open("w") as out, self.err.open("w") as err:
            super().__init__(command, env=env, cwd=cwd, stdout=out, stderr=err, text=True, start_new_session=True)

    def done(self, seconds: float = 900) -> int:
        """The exit code."""
        return self.wait(timeout=seconds)

    def told(self, seconds: float = 900) -> dict[str, Any]:
        """The summary of a run that has to end well."""
        assert self.done(seconds) == 0, self.err.read_text()
        return dict(json.loads(self.out.read_text().splitlines()[-1]))

    def rest(self, path: str) -> Any:
        """An answer of Spark's REST API below the application, or None while (or once) there is none."""
        base = f"http://127.0.0.1:{self._ui}/api/v1/applications"
        try:
            return fetch(f"{base}/{fetch(base)[0]['id']}/{path}")
        except (OSError, IndexError, ValueError):
            return None

    def until(self, condition: Callable[[], Any], *, seconds: float = 900) -> Any:
        """As :func:`until`, for what has to happen before the driver ends."""

        def seen() -> Any:
            value = condition()
            assert value or self.poll() is None, f"the driver ended before: {self.err.read_text()}"
            return value

        return until(seen, seconds=seconds)


class Cluster:
    """A master and workers, each with so many made-up GPUs. A context manager: nothing is left when it is over."""

    def __init__(self, folder: Path, *, workers: int = 2, gpus: int = 1, cores: int = 4, memory: str = "4g") -> None:
        self.folder, self.logs = folder, folder / "logs"
        self._gpus, self._cores, self._memory = gpus, cores, memory
        self.workers: list[Worker] = []
        self._drivers: list[Driver] = []
        self._started: list[subprocess.Popen[bytes]] = []
        for name in ("logs", "conf", "tmp", "local", "work"):
            (folder / name).mkdir()
        self.home = install(folder)
        try:
            master = self._daemon("master", "Master", ["--port", "0", "--webui-port", "0"])
            self.master_url = self._from_log(master, r"Starting Spark master at (spark://\S+)")
            self._ui = self._from_log(master, r"Bound MasterWebUI to [^,]*, and started at (http://\S+)")
            for _ in range(workers):
                self.start_worker(wait=False)
            self._until_registered()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- the cluster

    def start_worker(self, *, wait: bool = True) -> Worker:
        """One more worker. Returns when the master knows it, unless ``wait`` is off."""
        name = f"worker-{len(self.workers)}"
        declared = {"amount": self._gpus, "discoveryScript": HERE / "gpu_discovery_stub.sh"}
        properties = self.folder / "conf" / f"{name}.conf"
        properties.write_text("".join(f"spark.worker.resource.gpu.{key} {value}\n" for key, value in declared.items()))
        arguments = [
            *("--port", "0", "--webui-port", "0", "--cores", str(self._cores), "--memory", self._memory),
            *("--work-dir", str(self.folder / "work" / name), "--properties-file", str(properties), self.master_url),
        ]
        gpus = ",".join(f"{name}.gpu-{i}" for i in range(self._gpus))
        # a host of its own, as Spark sees it: a second attempt of a task goes to another host
        log = self._daemon(name, "Worker", arguments, host=f"127.0.0.{2 + len(self.workers)}", STUB_GPUS=gpus)
        self.workers.append(Worker(self, self._started[-1], log))
        if wait:
            self._until_registered()
        return self.workers[-1]

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications."""
        return dict(fetch(f"{self._ui}/json/"))

    def _until_registered(self) -> None:
        def registered() -> bool:
            living = sum(worker.alive() for worker in self.workers)
            return sum(one["state"] == "ALIVE" for one in self.state()["workers"]) >= living

        until(registered, what="the registration of the workers")

    def _daemon(self, name: str, kind: str, arguments: list[str], *, host: str = "127.0.0.1", **env: str) -> Path:
        log = self.logs / f"{name}.log"
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
        options = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{SMALL_JVM} -Djava.io.tmpdir={self.folder}/tmp",
            "SPARK_CONF_DIR": str(self.folder / "conf"),  # not what this machine has for its own Spark
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": host,
        }
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--host", host, *arguments],
                env={**self._environment(), **options, **env}, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return log

    def _environment(self) -> dict[str, str]:
        """The caller's, without what names another Spark or another copy of the package."""
        foreign = ("SPARK_", "PYSPARK_", "PYTHONPATH", "DAYBREAK_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(self.folder / "tmp")}
        return {**kept, **own, MARK: str(self.folder)}

    def _from_log(self, log: Path, pattern: str) -> str:
        def found() -> str | None:
            assert self._started[-1].poll() is None, log.read_text()
            match = re.search(pattern, log.read_text())
            return match[1] if match else None

        return str(until(found, what=f"{pattern!r} in {log}"))

    # -- its processes

    def processes(self) -> list[Process]:
        """All that run because of this cluster: daemons, drivers, executors and Python workers."""
        return list(_marked(f"{MARK}={self.folder}".encode()))

    def descendants(self, pid: int) -> list[Process]:
        found, parents = [], {pid}
        everyone = self.processes()
        while parents:
            children = [process for process in everyone if process.parent in parents]
            found += children
            parents = {process.pid for process in children}
        return found

    def executors(self) -> list[Process]:
        """The JVMs of the executors; their parent is a worker."""
        return [process for process in self.processes() if ".CoarseGrainedExecutorBackend" in process.command]

    def python_workers(self) -> list[Process]:
        """The processes that hold a model each: forks of an executor's pyspark.daemon."""
        python = {process.pid: process for process in self.processes() if "pyspark.daemon" in process.command}
        return [process for process in python.values() if process.parent in python]

    # -- its jobs

    def submit(
        self,
        config: Path,
        *arguments: str,
        job: str = "jobs/score.py",
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Driver:
        """The real command: ``--env standalone-gpu``, made small by ``small.conf`` and then ``conf``, with --json."""
        ui, number = free_port(), len(self._drivers)
        here = {
            "spark.ui.port": str(ui),
            "spark.driver.extraJavaOptions": SMALL_JVM,
            "spark.executor.extraJavaOptions": f"{SMALL_JVM} -Djava.io.tmpdir={self.folder}/tmp",
        }
        chosen = {**settings(HERE / "small.conf"), **here, **(conf or {})}
        words = [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
        command = [str(self.home / "spark-submit.sh"), "--env", "standalone-gpu", "--master", self.master_url, *words]
        # the list of Delta's jars is the repository's, so that Ivy is asked once
        cache = {"DAYBREAK_CACHE": str(REPO / "build"), "SPARK_LOCAL_DIRS": str(self.folder / "local")}
        own = {**self._environment(), "PYSPARK_PYTHON": sys.executable, **cache}
        del own["SPARK_HOME"]  # to be found by the script
        driver = Driver(
            [*command, job, "--config", str(config), "--json", *arguments],
            env={**own, **(env or {})}, cwd=self.folder, logs=self.logs / f"driver-{number}", ui=ui,
        )  # fmt: skip
        self._drivers.append(driver)
        return driver

    # -- the end

    def tails(self, lines: int = 40) -> str:
        """The ends of all logs, for the report of a test that failed; and where they lie."""
        logs = sorted([*self.logs.iterdir(), *(self.folder / "work").glob("*/app-*/*/stderr")])
        ends = ("\n".join([f"--- {log}", *log.read_text(errors="replace").splitlines()[-lines:]]) for log in logs)
        return "\n".join(ends)

    def stop(self) -> None:
        """End every process of the cluster, the daemons first so that none starts another."""
        for own in self._started:
            own.kill()

        def ended() -> bool:
            left = self.processes()
            for process in left:
                process.kill()
            for own in (*self._started, *self._drivers):
                own.poll()
            return not left

        until(ended, what="the end of the cluster's processes")


def _marked(mark: bytes) -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield _process(entry)


def _process(entry: Path) -> Process:
    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    parent = re.search(r"^PPid:\s*(\d+)", (entry / "status").read_text(), re.MULTILINE)
    return Process(int(entry.name), int(parent[1]) if parent else 0, command)
