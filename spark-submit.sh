#!/usr/bin/env bash
# Runs one of jobs/*.py on Spark, with Delta, this package and the settings of one environment.
#
# The driver runs here, in client mode, and this shell becomes it (exec): the pid of this script is the pid of
# the Python driver, its exit code is the job's exit code, its terminal is the job's terminal. PySpark starts
# Spark's own spark-submit as a child, with the arguments that are put together below, when the job first asks
# for a session. (Under `spark-submit job.py` it is the other way round: the JVM is the parent, merges the job's
# stderr into stdout and hides the terminal, so no progress bar and no clean --json.) The JVM ends by itself
# when the driver does, also after kill -9; Ctrl-C reaches the driver only, which stops the JVM.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: spark-submit.sh [--env NAME] [--master URL] [--conf KEY=VALUE]... JOB [ARGUMENT]...

  JOB               jobs/score.py or another Python file; looked up here, then in the repository
  ARGUMENT          everything after JOB goes to the job, e.g. --config FILE --set a.b=c
  --env NAME        conf/spark/NAME.conf (default: $DAYBREAK_ENV or local)
  --master URL      short for --conf spark.master=URL
  --conf KEY=VALUE  a Spark setting that wins over the file (also: --spark-conf)

  Python            $PYSPARK_DRIVER_PYTHON, $PYSPARK_PYTHON, .venv/bin/python or python3, the first that is there
  Spark             $SPARK_HOME, or the pyspark of that Python
  Java              $JAVA_HOME, or the java on PATH; 17 or newer
  $DAYBREAK_CACHE   for the zip of the package, the list of jars and Spark's scratch files (default: build/)
  $DAYBREAK_JARS    jars to use for Delta instead of a download, separated by commas
HELP
}

fail() { # fail PROBLEM [FIX]: the exit code is that of a wrong configuration
  printf 'spark-submit.sh: %s\n' "$1" >&2
  [[ $# -lt 2 ]] || printf '  to mend it: %s\n' "$2" >&2
  exit 2
}

repo_of_this_script() { # follows links, without readlink -f, which not every system has
  local script=${BASH_SOURCE[0]} folder
  while [[ -L $script ]]; do
    folder=$(cd -P -- "$(dirname -- "$script")" && pwd)
    script=$(readlink -- "$script")
    [[ $script == /* ]] || script=$folder/$script
  done
  cd -P -- "$(dirname -- "$script")" && pwd
}

# --- what was asked for -------------------------------------------------------------------------------------

read_arguments() {
  env=${DAYBREAK_ENV:-local}
  settings=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --env | --master | --conf | --spark-conf)
        [[ $# -ge 2 ]] || fail "$1 needs a value" "see $0 --help"
        read_option "$1" "$2"
        shift 2
        ;;
      --env=* | --master=* | --conf=* | --spark-conf=*)
        read_option "${1%%=*}" "${1#*=}"
        shift
        ;;
      -*) fail "unknown option $1; before the job stand --env, --master and --conf" "see $0 --help" ;;
      *) break ;;
    esac
  done
  [[ $# -gt 0 ]] || fail "no job given; there are: $(jobs_known)" "spark-submit.sh jobs/score.py --config FILE"
  job=$(find_job "$1")
  shift
  job_arguments=("$@")
}

read_option() {
  case $1 in
    --env) env=$2 ;;
    --master) settings+=("spark.master=$2") ;;
    *)
      [[ $2 == ?*=* ]] || fail "$1 $2 is not KEY=VALUE" "e.g. --conf spark.driver.memory=8g"
      settings+=("$2")
      ;;
  esac
}

find_job() {
  local place
  for place in "$1" "$repo/$1"; do
    [[ -f $place ]] && printf '%s' "$place" && return
  done
  fail "no job $1, neither in $PWD nor in $repo; there are: $(jobs_known)"
}

jobs_known() { (cd -- "$repo" && printf '%s ' jobs/*.py); }

find_properties() {
  properties=$repo/conf/spark/$env.conf
  [[ -f $properties ]] || fail "no environment $env: conf/spark/$env.conf is not there; known: $(environments_known)"
  master=$(setting spark.master)
  [[ -n $master ]] || fail "conf/spark/$env.conf names no spark.master" \
    "add --master URL; the first lines of the file say which, or where else its settings belong"
  [[ $(setting spark.submit.deployMode) != cluster ]] || fail "spark.submit.deployMode=cluster: the driver runs here" \
    "run this script on a machine or in a pod near the cluster, in client mode"
}

environments_known() {
  local file
  for file in "$repo"/conf/spark/*.conf; do
    basename -- "$file" .conf
  done | tr '\n' ' '
}

setting() { # setting KEY: its value, from --conf or else from the properties file; empty where neither has it
  local pair value=
  value=$(awk -v key="$1" '
    { line = $0; sub(/^[ \t]+/, "", line) }
    line ~ /^#/ || index(line, key) != 1 { next }
    { rest = substr(line, length(key) + 1) }
    rest ~ /^[ \t=:]/ { gsub(/^[ \t=:]+|[ \t\r]+$/, "", rest); value = rest }
    END { print value }' "$properties")
  for pair in ${settings[@]+"${settings[@]}"}; do
    [[ ${pair%%=*} != "$1" ]] || value=${pair#*=}
  done
  printf '%s' "$value"
}

# --- what it runs on ----------------------------------------------------------------------------------------

find_python() {
  local wanted=${PYSPARK_DRIVER_PYTHON:-${PYSPARK_PYTHON:-}}
  if [[ -z $wanted ]]; then
    wanted=python3
    [[ ! -x $repo/.venv/bin/python ]] || wanted=$repo/.venv/bin/python
  fi
  python=$(command -v -- "$wanted") || fail "no Python: $wanted is not there" \
    "run make venv in $repo, or set PYSPARK_PYTHON to a Python that has the packages of setup.py"
}

find_spark() {
  if [[ -z ${SPARK_HOME:-} ]]; then
    SPARK_HOME=$("$python" -c 'from importlib.util import find_spec
spec = find_spec("pyspark")
print(spec.submodule_search_locations[0] if spec else "")') || fail "$python does not run" "set PYSPARK_PYTHON"
    [[ -n $SPARK_HOME ]] || fail "no Spark: SPARK_HOME is not set and $python has no pyspark" \
      "run make venv in $repo, or set SPARK_HOME"
  fi
  [[ -f $SPARK_HOME/bin/spark-submit ]] || fail "no Spark: SPARK_HOME is $SPARK_HOME, which has no bin/spark-submit" \
    "set SPARK_HOME to the folder of a Spark distribution, or unset it to use pip's pyspark"
  export SPARK_HOME
  python_path=$repo/lib
  if [[ -f $SPARK_HOME/python/pyspark/__init__.py ]]; then # a distribution brings its own pyspark: use that one
    python_path+=:$SPARK_HOME/python:$(printf '%s:' "$SPARK_HOME"/python/lib/py4j-*.zip)
  fi
  python_path=${python_path%:}${PYTHONPATH:+:$PYTHONPATH}
}

check_java() {
  local java found version fix
  fix="install a Java 17 (apt-get install openjdk-17-jre-headless, brew install openjdk@17) and set JAVA_HOME to it"
  if [[ -n ${JAVA_HOME:-} ]]; then
    java=$JAVA_HOME/bin/java
    [[ -x $java ]] || fail "no Java: JAVA_HOME is $JAVA_HOME, which has no bin/java" "$fix"
  else
    java=$(command -v java) || fail "no Java: JAVA_HOME is not set and no java is on PATH; Spark needs 17 or newer" "$fix"
  fi
  found=$("$java" -version 2>&1) || fail "no Java: $java does not run: ${found%%$'\n'*}" "$fix"
  version=$(sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' <<<"$found" | head -n 1)
  [[ -n $version ]] || fail "cannot read the version of $java from: ${found%%$'\n'*}" "$fix"
  [[ $version -ge 17 ]] || fail "Java $version at $java is too old; Spark needs 17 or newer" "$fix"
}

# --- what goes with it --------------------------------------------------------------------------------------

delta_package="io.delta:delta-spark_4.2_2.13:4.4.0" # belongs to the pyspark and delta-spark of setup.py
delta_excludes="org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime" # Spark brings them

# Prints the jars of Delta, separated by commas. Spark's own --packages finds them (through Ivy, with the mirrors
# and the cache that the settings name), once: it takes seconds and prints a hundred lines, so the list is kept.
delta_jars() {
  if [[ -n ${DAYBREAK_JARS+set} ]]; then
    printf '%s' "$DAYBREAK_JARS"
    return
  fi
  if compgen -G "$SPARK_HOME/jars/delta-spark_*.jar" >/dev/null; then
    return # this Spark brings its own
  fi
  local arguments=(--master "local[1]" --packages "$delta_package" --exclude-packages "$delta_excludes") key
  if [[ -z $(setting spark.jars.ivy) && -n ${HOME:-} ]]; then
    arguments+=(--conf "spark.jars.ivy=$HOME/.ivy2.5.2") # Spark's default, but Java does not look at HOME
  fi
  for key in spark.jars.ivy spark.jars.ivySettings spark.jars.repositories; do
    [[ -z $(setting "$key") ]] || arguments+=(--conf "$key=$(setting "$key")")
  done
  PYSPARK_SUBMIT_ARGS="$(quoted "${arguments[@]}") pyspark-shell" PYTHONPATH=$python_path \
    "$python" - "$cache" "$delta_package" <<'PY' || fail "cannot get $delta_package: see $cache/ivy.log" \
    "a mirror is --conf spark.jars.ivySettings=FILE (or spark.jars.repositories=URL); without a network set DAYBREAK_JARS"
import fcntl
import hashlib
import os
import sys
from pathlib import Path

cache, package = Path(sys.argv[1]), sys.argv[2]
wanted = os.environ["PYSPARK_SUBMIT_ARGS"] + os.environ["SPARK_HOME"]
kept = cache / f"jars-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.txt"


def jars():
    paths = kept.read_text().split("\n") if kept.exists() else []
    return paths if paths and all(Path(path).exists() for path in paths) else None


with (cache / "ivy.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # Ivy's cache does not take two first downloads at once
    if jars() is None:
        from urllib.parse import unquote, urlparse

        from pyspark.java_gateway import launch_gateway

        print(f"getting {package} and what it needs, once", file=sys.stderr)
        with (cache / "ivy.log").open("wb") as log:
            try:
                gateway = launch_gateway(popen_kwargs={"stdout": log, "stderr": log})
            except Exception:
                sys.exit(1)
        found = gateway.jvm.java.lang.System.getProperty("spark.jars").split(",")
        gateway.shutdown()
        partial = kept.with_suffix(".partial")
        partial.write_text("\n".join(unquote(urlparse(url).path) for url in found))
        partial.replace(kept)
print(",".join(jars()), end="")
PY
}

# Prints the path of a zip of lib/daybreak, named by its content, so that two submits may build it at once and
# an executor never gets half of one.
package_zip() {
  "$python" - "$repo/lib" "$cache" <<'PY'
import hashlib
import os
import sys
import zipfile
from pathlib import Path

lib, cache = Path(sys.argv[1]), Path(sys.argv[2])
files = {
    path.relative_to(lib).as_posix(): path.read_bytes()
    for path in sorted((lib / "daybreak").rglob("*"))
    if path.is_file() and "__pycache__" not in path.parts
}
digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
target = cache / f"daybreak-{digest}.zip"
if not target.exists():
    partial = cache / f"{target.name}.{os.getpid()}"
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content)
    partial.replace(target)
print(target, end="")
PY
}

quoted() { # quoted WORD...: one line that a POSIX shell, or Python's shlex, splits into the words again
  local word line=
  for word in "$@"; do
    line+=" '${word//\'/\'\\\'\'}'"
  done
  printf '%s' "${line# }"
}

prepare_cache() {
  cache=${DAYBREAK_CACHE:-$repo/build}
  mkdir -p -- "$cache" 2>/dev/null && [[ -w $cache ]] || fail "cannot write to $cache" "set DAYBREAK_CACHE to a folder"
  cache=$(cd -- "$cache" && pwd)
}

gather_submit_arguments() {
  local jars pair
  jars=$(delta_jars)
  submit=(--properties-file "$properties")
  [[ -z $jars ]] || submit+=(--jars "$jars")
  if [[ $master != local* ]]; then
    submit+=(--load-spark-defaults --py-files "$(package_zip)") # in local mode PYTHONPATH is enough
  fi
  for pair in ${settings[@]+"${settings[@]}"}; do
    submit+=(--conf "$pair")
  done
}

export_environment() {
  export PYSPARK_SUBMIT_ARGS PYSPARK_PYTHON PYTHONPATH LOG4J_CONFIGURATION_FILE
  PYSPARK_SUBMIT_ARGS="$(quoted "${submit[@]}") pyspark-shell"
  PYTHONPATH=$python_path
  LOG4J_CONFIGURATION_FILE=${LOG4J_CONFIGURATION_FILE:-$repo/conf/spark/log4j2.properties}
  # PySpark in a Python of its own reads the executors' Python from here and not from the setting.
  PYSPARK_PYTHON=${PYSPARK_PYTHON:-$(setting spark.pyspark.python)}
  PYSPARK_PYTHON=${PYSPARK_PYTHON:-$python}
  export PYTHONHASHSEED=${PYTHONHASHSEED:-0} # as spark-submit does: the hashes of driver and executors agree
  if [[ -n ${TMPDIR:-} ]]; then # Java does not look at it
    export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS:+$SPARK_SUBMIT_OPTS }-Djava.io.tmpdir=\"$TMPDIR\""
  fi
  if [[ $master == local* ]]; then
    export SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1} # works without a network and on a laptop that moves
    export SPARK_LOCAL_DIRS=${SPARK_LOCAL_DIRS:-$cache/spark-local}
  fi
}

repo=$(repo_of_this_script)
read_arguments "$@"
find_properties
find_python
find_spark
check_java
prepare_cache
gather_submit_arguments
export_environment
exec "$python" "$job" ${job_arguments[@]+"${job_arguments[@]}"}
