"""spark-submit.sh without a JVM: what it finds, what it refuses and how it says so, and what it hands on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {"local", "standalone-gpu", "yarn-gpu", "k8s-gpu", "databricks"}

# What the job saw: its arguments, where it ran, and what PySpark would hand to Spark.
JOB = """
import json, os, shlex, sys
if sys.argv[1:2] == ["exit"]:
    sys.exit(int(sys.argv[2]))
import daybreak
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "pid": os.getpid(), "daybreak": daybreak.__file__,
    "submit": shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"]), "env": dict(os.environ),
}))
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    executable(home / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    return home


class Submit:
    """A copy of what spark-submit.sh needs, in a folder with spaces, and a caller in another such folder."""

    def __init__(self, folder: Path) -> None:
        self.repo = folder / "a clone; it's here"
        self.cwd = folder / "the caller's folder"
        self.cwd.mkdir()
        self.repo.mkdir()
        for name in ("spark-submit.sh", "conf/spark", "jobs"):
            source = REPO / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, self.repo / name)
        shutil.copytree(REPO / "lib/daybreak", self.repo / "lib/daybreak", ignore=shutil.ignore_patterns("__pycache__"))
        (self.repo / "jobs/probe.py").write_text(JOB)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(fake_java(folder / "java home", "17.0.15")),
            "DAYBREAK_JARS": "/jars/delta one.jar,/jars/two.jar",
        }

    def __call__(self, *arguments: str, **env: str | None) -> subprocess.CompletedProcess[str]:
        merged = {key: value for key, value in {**self.env, **env}.items() if value is not None}
        return subprocess.run(
            [self.repo / "spark-submit.sh", *arguments],
            cwd=self.cwd, env=merged, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def seen(self, *arguments: str, **env: str | None) -> dict[str, object]:
        done = self(*arguments, **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    return Submit(tmp_path)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2, a message of at most two lines that has these words, nothing on stdout, no stack trace."""
    assert done.returncode == 2
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
    assert "Traceback" not in done.stderr


def test_the_job_runs_in_the_callers_folder_with_its_arguments_untouched(submit: Submit) -> None:
    arguments = ["--config", "my job.yaml", "--set", "a.b=it's $HOME", "--conf", "", "--env", "x"]
    seen = submit.seen("jobs/probe.py", *arguments)
    assert seen["argv"] == arguments
    assert seen["cwd"] == str(submit.cwd)
    assert seen["daybreak"] == str(submit.repo / "lib/daybreak/__init__.py")


def test_local_hands_on_the_settings_of_the_file_and_of_the_command(submit: Submit) -> None:
    seen = submit.seen("--conf", "spark.x=a b", "--spark-conf=spark.y=c=d", "--master", "local[3]", "jobs/probe.py")
    assert seen["submit"] == [
        "--properties-file", str(submit.repo / "conf/spark/local.conf"),
        "--jars", "/jars/delta one.jar,/jars/two.jar",
        "--conf", "spark.x=a b", "--conf", "spark.y=c=d", "--conf", "spark.master=local[3]",
        "pyspark-shell",
    ]  # fmt: skip
    env = seen["env"]
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert env["LOG4J_CONFIGURATION_FILE"] == str(submit.repo / "conf/spark/log4j2.properties")
    assert env["SPARK_LOCAL_DIRS"] == str(submit.repo / "build/spark-local")
    assert env["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_cluster_gets_the_package_as_a_zip_named_by_its_content(submit: Submit) -> None:
    def shipped() -> Path:
        seen = submit.seen("--env", "standalone-gpu", "--master=spark://nowhere:7077", "jobs/probe.py")
        assert "--load-spark-defaults" in seen["submit"]
        return Path(seen["submit"][seen["submit"].index("--py-files") + 1])

    first = shipped()
    with zipfile.ZipFile(first) as archive:
        assert "daybreak/__init__.py" in archive.namelist()
        assert archive.read("daybreak/errors.py") == (REPO / "lib/daybreak/errors.py").read_bytes()
        assert not [name for name in archive.namelist() if "__pycache__" in name]
    assert shipped() == first
    (submit.repo / "lib/daybreak/new.py").write_text("NEW = 1\n")
    second = shipped()
    assert second != first
    assert zipfile.ZipFile(second).read("daybreak/new.py") == b"NEW = 1\n"
    assert sorted(path.name for path in (submit.repo / "build").iterdir()) == sorted([first.name, second.name])


def test_two_submits_at_once_build_one_whole_zip(submit: Submit) -> None:
    command = [submit.repo / "spark-submit.sh", "--env", "yarn-gpu", "jobs/probe.py"]
    running = [
        subprocess.Popen(command, cwd=submit.cwd, env=submit.env, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    paths = set()
    for process in running:
        submitted = json.loads(process.communicate(timeout=60)[0])["submit"]
        assert process.returncode == 0
        paths.add(submitted[submitted.index("--py-files") + 1])
    (path,) = paths
    assert zipfile.ZipFile(path).testzip() is None
    assert [path] == [str(found) for found in (submit.repo / "build").iterdir()]


def test_the_executors_python_is_the_environments_unless_the_caller_has_one(submit: Submit) -> None:
    def executors_python(**env: str | None) -> str:
        return submit.seen("--env", "yarn-gpu", "jobs/probe.py", **env)["env"]["PYSPARK_PYTHON"]

    assert executors_python(PYSPARK_PYTHON=None, PYSPARK_DRIVER_PYTHON=sys.executable) == "./environment/bin/python"
    assert executors_python(PYSPARK_PYTHON="/there/python", PYSPARK_DRIVER_PYTHON=sys.executable) == "/there/python"


def test_without_a_word_the_venv_of_the_repository_is_the_python(submit: Submit) -> None:
    venv = submit.repo / ".venv/bin/python"
    executable(venv, f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert submit.seen("jobs/probe.py", PYSPARK_PYTHON=None)["env"]["PYSPARK_PYTHON"] == str(venv)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5])
def test_the_jobs_exit_code_is_the_scripts(submit: Submit, code: int) -> None:
    done = submit("jobs/probe.py", "exit", str(code))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_the_pid_of_the_script_is_the_driver(submit: Submit) -> None:
    command = [submit.repo / "spark-submit.sh", "jobs/probe.py"]
    process = subprocess.Popen(command, cwd=submit.cwd, env=submit.env, stdout=subprocess.PIPE, text=True)
    assert json.loads(process.communicate(timeout=60)[0])["pid"] == process.pid


def test_a_signal_ends_the_driver(submit: Submit) -> None:
    (submit.repo / "jobs/probe.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [submit.repo / "spark-submit.sh", "jobs/probe.py"]
    process = subprocess.Popen(command, cwd=submit.cwd, env=submit.env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM
    process.stdout.close()


def test_it_is_found_through_a_link_and_from_path(submit: Submit, tmp_path: Path) -> None:
    link = tmp_path / "bin dir" / "submit"
    link.parent.mkdir()
    link.symlink_to(os.path.relpath(submit.repo / "spark-submit.sh", link.parent))
    done = subprocess.run(
        ["submit", "jobs/probe.py"], cwd=submit.cwd, capture_output=True, text=True, check=True, timeout=60,
        env={**submit.env, "PATH": f"{link.parent}:{submit.env['PATH']}"},
    )  # fmt: skip
    assert json.loads(done.stdout)["daybreak"].startswith(str(submit.repo))


def test_a_job_in_the_callers_folder_comes_first(submit: Submit) -> None:
    (submit.cwd / "jobs").mkdir()
    (submit.cwd / "jobs/score.py").write_text("print('mine')\n")
    assert submit("jobs/score.py").stdout == "mine\n"


def test_without_java(submit: Submit, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "awk", "sed", "head", "dirname", "basename", "mkdir", "tr", "readlink", "env"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    done = submit("jobs/probe.py", JAVA_HOME=None, PATH=str(tools))
    assert_refused(done, "no Java", "JAVA_HOME is not set", "17 or newer", "openjdk-17", "set JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "major"), [("11.0.2", "11"), ("1.8.0_392", "8"), ("16-ea", "16")], ids=["11", "8", "16-ea"]
)
def test_java_that_is_too_old(submit: Submit, tmp_path: Path, version: str, major: str) -> None:
    old = fake_java(tmp_path / f"old java {major}", version)
    words = f"Java {major}", "too old", "17 or newer", "set JAVA_HOME"
    assert_refused(submit("jobs/probe.py", JAVA_HOME=str(old)), *words, str(old / "bin/java"))
    found_on_path = f"{old / 'bin'}:{os.environ['PATH']}"
    assert_refused(submit("jobs/probe.py", JAVA_HOME=None, PATH=found_on_path), *words, str(old / "bin/java"))


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea", "17"])
def test_java_that_will_do(submit: Submit, tmp_path: Path, version: str) -> None:
    assert submit("jobs/probe.py", "exit", "0", JAVA_HOME=str(fake_java(tmp_path / "jdk", version))).returncode == 0


def test_java_home_that_is_none(submit: Submit, tmp_path: Path) -> None:
    assert_refused(submit("jobs/probe.py", JAVA_HOME=str(tmp_path / "no jdk")), "JAVA_HOME is", "no jdk", "no bin/java")


def test_java_that_does_not_run(submit: Submit, tmp_path: Path) -> None:
    executable(tmp_path / "stub/bin/java", "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    assert_refused(submit("jobs/probe.py", JAVA_HOME=str(tmp_path / "stub")), "stub/bin/java does not run: Unable to")


def test_unknown_environment_lists_the_known(submit: Submit) -> None:
    assert_refused(submit("--env", "moon", "jobs/probe.py"), "no environment moon", *ENVIRONMENTS)


@pytest.mark.parametrize("arguments", [("jobs/nope.py",), ()], ids=["unknown", "none"])
def test_unknown_or_missing_job_lists_the_known(submit: Submit, arguments: tuple[str, ...]) -> None:
    assert_refused(submit(*arguments), "job", "jobs/score.py", "jobs/publish.py", "jobs/runs.py")


def test_unknown_option(submit: Submit) -> None:
    assert_refused(submit("--config", "x.yaml", "jobs/probe.py"), "unknown option --config", "--help")


@pytest.mark.parametrize("arguments", [("--env",), ("--conf", "spark.x", "jobs/probe.py"), ("--conf", "=1", "j")])
def test_option_without_its_value(submit: Submit, arguments: tuple[str, ...]) -> None:
    assert_refused(submit(*arguments), arguments[0])


@pytest.mark.parametrize("env", ["standalone-gpu", "k8s-gpu", "databricks"])
def test_an_environment_without_a_master_asks_for_it(submit: Submit, env: str) -> None:
    assert_refused(submit("--env", env, "jobs/probe.py"), f"conf/spark/{env}.conf", "spark.master", "--master URL")


def test_cluster_deploy_mode_is_refused(submit: Submit) -> None:
    done = submit("--env=yarn-gpu", "--conf", "spark.submit.deployMode=cluster", "jobs/probe.py")
    assert_refused(done, "spark.submit.deployMode=cluster", "the driver runs here")


def test_without_python_spark_or_a_cache(submit: Submit, tmp_path: Path) -> None:
    assert_refused(submit("jobs/probe.py", PYSPARK_PYTHON="/no/python"), "/no/python", "make venv")
    assert_refused(submit("jobs/probe.py", SPARK_HOME=str(tmp_path)), "SPARK_HOME", "no bin/spark-submit")
    bare = executable(tmp_path / "bare python", f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    assert_refused(submit("jobs/probe.py", PYSPARK_PYTHON=str(bare)), "no pyspark", "make venv")
    (tmp_path / "file").touch()
    assert_refused(submit("jobs/probe.py", DAYBREAK_CACHE=str(tmp_path / "file/x")), "cannot write", "DAYBREAK_CACHE")


def test_a_download_that_fails_says_where_to_look_and_is_not_remembered(submit: Submit, tmp_path: Path) -> None:
    spark = executable(tmp_path / "spark home/bin/spark-submit", "#!/bin/sh\necho unresolved >&2\nexit 1\n")
    for _ in range(2):
        done = submit("jobs/probe.py", DAYBREAK_JARS=None, SPARK_HOME=str(spark.parent.parent))
        assert done.returncode == 2
        getting, problem, fix = done.stderr.splitlines()
        assert "getting io.delta:delta-spark_" in getting
        assert str(submit.repo / "build/ivy.log") in problem
        assert "spark.jars.ivySettings" in fix
        assert "DAYBREAK_JARS" in fix
    assert "unresolved" in (submit.repo / "build/ivy.log").read_text()


def test_help_says_what_it_takes(submit: Submit) -> None:
    done = submit("--help")
    assert done.returncode == 0
    for word in ("--env", "--master", "--conf", "JAVA_HOME", "SPARK_HOME", "DAYBREAK_CACHE", "DAYBREAK_JARS"):
        assert word in done.stdout


def settings(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split(" ", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), f"{path.name} sets a key twice"
    return dict(pairs)


def test_the_environments_are_the_known_ones() -> None:
    assert {path.stem for path in (REPO / "conf/spark").glob("*.conf")} == ENVIRONMENTS


@pytest.mark.parametrize("env", sorted(ENVIRONMENTS))
def test_what_every_environment_rests_on(env: str) -> None:
    path = REPO / f"conf/spark/{env}.conf"
    found = settings(path)
    assert found["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "2"
    assert found["spark.python.worker.reuse"] == "true"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert "spark.executor.pyspark.memory" not in found  # it breaks CUDA
    assert not [line for line in path.read_text().splitlines() if line[:1] != "#" and "#" in line]


@pytest.mark.parametrize(
    ("visible", "addresses"),
    [(None, ["0", "1"]), ("3", ["3"]), ("GPU-1f,GPU-2e", ["GPU-1f", "GPU-2e"]), ("", [])],
)
def test_gpu_discovery(tmp_path: Path, visible: str | None, addresses: list[str]) -> None:
    executable(tmp_path / "nvidia-smi", "#!/bin/sh\nprintf '0\\n1\\n'\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    done = subprocess.run([REPO / "conf/spark/gpu_discovery.sh"], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"name": "gpu", "addresses": addresses}
