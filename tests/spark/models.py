"""Small deterministic models, saved by value: what they compute can be checked in the head."""

from __future__ import annotations

import os
from pathlib import Path

import mlflow
from mlflow.types import ColSpec, DataType, Schema

DOUBLE_IN = Schema([ColSpec(DataType.double, "x")])
DOUBLE_OUT = Schema([ColSpec(DataType.double, "y")])
PLACED_OUT = Schema([*DOUBLE_OUT.inputs, *(ColSpec(DataType.string, name) for name in ("gpu", "package"))])
ATTEMPT_OUT = Schema([*DOUBLE_OUT.inputs, ColSpec(DataType.long, "attempt")])
TEXT_IN = Schema([ColSpec(DataType.string, "text")])
LENGTH_OUT = Schema([ColSpec(DataType.long, "length")])


class Long(mlflow.pyfunc.PythonModel):
    """A text of ten characters; none where x is 0."""

    def predict(self, context, model_input, params=None):
        told = model_input[["x"]].rename(columns={"x": "told"}).astype(object)
        told["told"] = [None if x == 0 else "0123456789" for x in model_input["x"]]
        return told


class Double(mlflow.pyfunc.PythonModel):
    """y = factor * x; raises on a batch that holds a poisoned x."""

    def __init__(self, poison=(), factor=2.0):
        self.poison, self.factor = poison, factor

    def predict(self, context, model_input, params=None):
        bad = [x for x in model_input["x"] if x in self.poison]
        if bad:
            raise ValueError(f"cannot score {bad[0]}")
        return (model_input[["x"]] * self.factor).rename(columns={"x": "y"})


class Unable(mlflow.pyfunc.PythonModel):
    """y = 2 x; lacks a module at one x for as long as a file exists, which no row is to blame for."""

    def __init__(self, at, flag, poison=()):
        self.at, self.flag, self.poison = at, flag, set(poison)

    def predict(self, context, model_input, params=None):
        if self.at in set(model_input["x"]) and Path(self.flag).exists():
            raise ImportError("libfeatures.so is not mounted")
        if bad := self.poison & set(model_input["x"]):
            raise ValueError(f"cannot score {bad}")
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})


class Deadly(mlflow.pyfunc.PythonModel):
    """y = 2 x; at three x it ends its process, exits, and sleeps for ever."""

    def __init__(self, ends, exits, sleeps):
        self.ends, self.exits, self.sleeps = ends, exits, sleeps

    def predict(self, context, model_input, params=None):
        import sys
        import time

        for x in model_input["x"]:
            if x == self.ends:
                os._exit(139)
            if x == self.exits:
                sys.exit(0)
            if x == self.sleeps:
                time.sleep(3600)
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})


class Same(mlflow.pyfunc.PythonModel):
    """What ``n`` is, as a text."""

    def predict(self, context, model_input, params=None):
        return {"told": ["None" if str(n) == "<NA>" else str(n) for n in model_input["n"].tolist()]}


class Length(mlflow.pyfunc.PythonModel):
    """Length of a text."""

    def predict(self, context, model_input, params=None):
        return model_input["text"].str.len().astype("int64").rename("length").to_frame()


class Difference(mlflow.pyfunc.PythonModel):
    """d = b - a, and s = b + a times a parameter of the signature."""

    def predict(self, context, model_input, params=None):
        times = (params or {}).get("times", 1)
        a, b = model_input["a"], model_input["b"]
        return {"d": (b - a).to_numpy(), "s": ((b + a) * times).to_numpy()}


class NeedsAbsentModule(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        import a_module_that_is_nowhere  # noqa: F401

    def predict(self, context, model_input, params=None):
        return model_input


class Counted(mlflow.pyfunc.PythonModel):
    """y = 2 x, so many rows a second; raises at one x; writes down each x that it was given."""

    def __init__(self, calls, rows_per_second, poison=None):
        self.calls, self.rows_per_second, self.poison = calls, rows_per_second, poison

    def predict(self, context, model_input, params=None):
        import time

        told = "".join(f"{x}\n" for x in model_input["x"])
        descriptor = os.open(self.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, told.encode())
        os.close(descriptor)
        if self.poison in set(model_input["x"]):
            raise ValueError(f"cannot score {self.poison}")
        time.sleep(len(model_input) / self.rows_per_second)
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})


class Slow(mlflow.pyfunc.PythonModel):
    """y = 2 x, at a hundred rows a second: slow enough to be killed in the middle."""

    def predict(self, context, model_input, params=None):
        import time

        time.sleep(len(model_input) / 100)
        return (model_input[["x"]] * 2).rename(columns={"x": "y"})


class Placed(mlflow.pyfunc.PythonModel):
    """y = 2 x, so many rows a second; and where it was computed: the task's GPU, and the package that ran it."""

    def __init__(self, rows_per_second):
        self.rows_per_second = rows_per_second

    def predict(self, context, model_input, params=None):
        import time

        from pyspark import TaskContext

        import daybreak

        time.sleep(len(model_input) / self.rows_per_second)
        gpu = TaskContext.get().resources()["gpu"].addresses[0]
        return (model_input[["x"]] * 2).rename(columns={"x": "y"}).assign(gpu=gpu, package=daybreak.__file__)


class Straggling(mlflow.pyfunc.PythonModel):
    """y = 2 x, and which attempt of its task computed it. At one x a first attempt hangs, and another raises."""

    def __init__(self, at):
        self.at = at

    def predict(self, context, model_input, params=None):
        import time

        from pyspark import TaskContext

        context = TaskContext.get()  # none in the process of its own where a second attempt scores
        attempt = context.attemptNumber() if context else 1
        if self.at in set(model_input["x"]):
            if attempt == 0:
                time.sleep(600)
            raise ValueError(f"cannot score {self.at}")
        return (model_input[["x"]] * 2).rename(columns={"x": "y"}).assign(attempt=attempt)


class Witness(mlflow.pyfunc.PythonModel):
    """Tells of every input what it saw of it (its dtype and its value), and answers the same in every row."""

    def __init__(self, answers):
        self.answers = answers

    def predict(self, context, model_input, params=None):
        columns = model_input if isinstance(model_input, dict) else dict(model_input.items())
        told = {
            name: [f"{values.dtype} {self._plain(value)!r}" for value in values] for name, values in columns.items()
        }
        rows = len(next(iter(told.values())))
        saw = [{name: values[i] for name, values in told.items()} for i in range(rows)]
        return {"saw": saw, **{name: [answer] * rows for name, answer in self.answers.items()}}

    @staticmethod
    def _plain(value):
        return value.tolist() if hasattr(value, "tolist") else value


class Tensors(mlflow.pyfunc.PythonModel):
    """Gives every tensor back, and tells its dtype, a row of it, and the shape of a row."""

    def predict(self, context, model_input, params=None):
        rows = zip(*model_input.values(), strict=True)
        saw = [[f"{v.dtype} {v.tolist()!r} {v.shape}" for v in map(self._array, row)] for row in rows]
        return {"saw": saw, **{f"same {name}": tensor for name, tensor in model_input.items()}}

    @staticmethod
    def _array(value):
        import numpy as np

        return value if hasattr(value, "dtype") else np.asarray(value, dtype=object)


class Awkward(mlflow.pyfunc.PythonModel):
    """Gives its inputs back under other names."""

    def predict(self, context, model_input, params=None):
        return {"y.`z` =; {ü}\n": model_input["in.put`s x"], "from": model_input["Ü;=,"]}


class Random(mlflow.pyfunc.PythonModel):
    """A random score; a file per process that loads it, and a line per row that it scores."""

    def __init__(self, folder):
        self.folder = folder

    def load_context(self, context):
        import uuid

        (Path(self.folder) / f"loaded-{os.getpid()}-{uuid.uuid4()}").touch()

    def predict(self, context, model_input, params=None):
        import random

        with (Path(self.folder) / f"scored-{os.getpid()}").open("a") as calls:
            calls.writelines(f"{x:.0f}\n" for x in model_input["x"])
        return [random.random() for _ in model_input["x"]]


class Mixed(mlflow.pyfunc.PythonModel):
    """Adds up one input of each kind; ``told`` says when, and the text."""

    def predict(self, context, model_input, params=None):
        rows = model_input.to_dict("records")
        if not all(type(row["v"]) is list and type(row["s"]) is dict for row in rows):
            raise TypeError("an array is no list, or a struct no dict")
        return {
            "y": [row["n"] + row["amount"] + sum(row["v"]) + row["s"]["a"] for row in rows],
            "told": [f"{row['day']:%Y-%m-%d} {row['at'].isoformat()} {row['text']}" for row in rows],
        }


class Rude(mlflow.pyfunc.PythonModel):
    """Prints, forks, starts threads and processes, moves to a folder that it removes, sets the environment, the time
    zone, the precision of decimals and what warnings do, writes over its input; then gives ``n`` and ``at`` back."""

    def predict(self, context, model_input, params=None):
        import decimal
        import subprocess
        import sys
        import tempfile
        import threading
        import time
        import warnings

        n, at, v = (model_input[name].tolist() for name in ("n", "at", "v"))
        total = [sum(cell) for cell in v]
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        os.write(1, b"below Python\n")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
        child = os.fork()
        if not child:
            os._exit(3)
        os.waitpid(child, 0)
        threads = [threading.Thread(target=cell.append, args=(1,)) for cell in v]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
        os.environ.update(TZ="Asia/Kathmandu", HOME="/nowhere", TMPDIR="/nowhere", PYTHONPATH="")
        time.tzset()
        decimal.getcontext().prec = 2
        warnings.simplefilter("error")
        sys.stdout = None
        for name in list(model_input.columns):
            del model_input[name]
        if any(one % 100 == 7 for one in n):
            raise ValueError("seven")
        return {"n": n, "at": at, "total": total}


class Unsure(mlflow.pyfunc.PythonModel):
    """y = 2 x, and no confidence but where x is 39."""

    def predict(self, context, model_input, params=None):
        sure = ["sure" if x == 39 else None for x in model_input["x"]]
        return {"y": model_input["x"] * 2, "confidence": sure}


class Choosing(mlflow.pyfunc.PythonModel):
    """Staged: y = 2 x, or 3 x in bf16, which is beyond any tolerance."""

    def place(self, *, device, precision):
        self.device, self.factor = "cpu", 3 if precision == "bf16" else 2

    def size(self, rows):
        return [1] * len(rows)

    def preprocess(self, rows):
        return rows

    def forward(self, batch):
        return batch * self.factor

    def postprocess(self, output):
        return output.rename(columns={"x": "y"})
