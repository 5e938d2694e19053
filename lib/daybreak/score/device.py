"""The device that a model computes on: which is this task's, what it can do, and how batches get there and back.

Nothing here touches CUDA, or imports torch, before a model is loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from daybreak.errors import ModelLoadError

__all__ = [
    "PRECISIONS",
    "Pending",
    "choose",
    "claim",
    "download",
    "dtype",
    "has_bf16",
    "label",
    "on_host",
    "share_memory",
    "upload",
]

PRECISIONS = ("fp32", "bf16", "fp16")

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds for the worker that has a GPU to note which one its new task was given
_claimed: list[TextIO | None] = []


def claim(gpu: str | None, cores: int, *, notes: str | os.PathLike[str] | None = None) -> None:
    """Give this process one GPU, by the address that Spark gave the task, and as many threads as it has cores.

    A process keeps the first GPU that it claimed: its model is there. Spark hands the next task to any idle worker, so
    the address may be another one's by then, and a new worker be given this one. It finds it taken, and in ``notes``, a
    folder of this executor's host, which one its holder was given instead: that one is free, or leads to one that is.
    None where several workers share a GPU. Threads that the environment sets stay as they are.
    """
    if gpu is not None:
        if not _claimed:
            taken, note = _taken(gpu, notes) if notes is not None else (gpu, None)
            os.environ["CUDA_VISIBLE_DEVICES"] = taken
            _claimed.append(note)
        if (mine := _claimed[0]) is not None:
            _write(mine, gpu)
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # torch on the processor; the tokenizers
        os.environ.setdefault(name, str(max(1, cores)))


def _taken(gpu: str, notes: str | os.PathLike[str]) -> tuple[str, TextIO | None]:
    """As ``_take``; where files cannot be written or locked, the GPU that the task was given."""
    try:
        return _take(gpu, Path(notes))
    except OSError as error:
        logger.warning("which worker has which GPU cannot be noted in %s: %s", notes, error)
        return gpu, None


def _take(gpu: str, notes: Path) -> tuple[str, TextIO | None]:
    """A GPU that no other worker of this executor has, as long as this process lives, and its note, which is locked."""
    notes.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _PATIENCE
    wanted, passed = gpu, set[str]()
    while time.monotonic() < deadline:
        note = (notes / f"gpu-{os.getppid()}-{wanted.replace('/', '_')}").open("a+")  # workers of a parent
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return wanted, note
        note.seek(0)
        passed.add(wanted)
        wanted = note.read()
        note.close()
        if not wanted or wanted in passed:  # its holder has not begun its next task yet
            time.sleep(0.05)
            wanted, passed = gpu, set()
    logger.warning("GPU %s, which Spark gave the task, is another worker's, and no other is known to be free", gpu)
    return gpu, None


def _write(note: TextIO, gpu: str) -> None:
    note.truncate(0)
    note.write(gpu)
    note.flush()


def choose() -> str:
    """``cuda:0`` if there is one, else ``cpu``."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def share_memory(share: float) -> None:
    """Let this process have no more than ``share`` (0 to 1) of its GPU's memory, since others have the rest."""
    if share >= 1:
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def label(device: str) -> str:
    """The device's make, such as ``NVIDIA H200`` or ``AMD EPYC x2``: what is learned on one holds for its like."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"{_processor()} x{torch.get_num_threads()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    named = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return named[0].split(":", 1)[1].strip() if named else platform.machine()


def has_bf16(device: str) -> bool:
    """Whether the device has instructions for bfloat16, without which it is slower than float32."""
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, probe, bool)()) for probe in probes)


def dtype(precision: str, device: str) -> Any:
    """The torch dtype of a precision on a device.

    Raises:
        ModelLoadError: the precision is unknown, or fp16 was asked for where there is no GPU.
    """
    import torch

    if precision not in PRECISIONS:
        raise ModelLoadError(f"the precision {precision!r} is unknown; allowed are {', '.join(PRECISIONS)}")
    if precision == "fp16" and not device.startswith("cuda"):
        raise ModelLoadError(
            f"fp16 needs a GPU, and the model is on {device}: processors compute it slower than fp32, or not at all",
            fix="set model.precision to auto, bf16 or fp32",
        )
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


# ------------------------------------------------------------------------------------------ to the GPU and back

_streams = threading.local()  # of each preprocessing thread


def upload(tensors: Sequence[Any], device: str) -> Callable[[], tuple[Any, ...]]:
    """Start copying host tensors to the device; called where the batch is preprocessed, ahead of its forward pass.

    The result is called by the forward pass: it returns the tensors on the device, and lets its stream, not the
    host, wait for the copy. On a processor nothing is copied.
    """
    if not device.startswith("cuda"):
        return lambda: tuple(tensors)
    import torch

    if not hasattr(_streams, "copies"):
        _streams.copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(_streams.copies):
        there = tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
        copied = _streams.copies.record_event()

    def arrived() -> tuple[Any, ...]:
        here = torch.cuda.current_stream(device)
        here.wait_event(copied)
        for tensor in there:
            tensor.record_stream(here)  # its memory is not used again before this stream is through with it
        return there

    return arrived


def download(result: Any) -> Any:
    """A tensor on its way to the host, as what ``forward`` returns: itself if it is there."""
    return Pending(result) if result.is_cuda else result


def on_host(output: Any) -> Any:
    """What ``forward`` returned, once the device is done."""
    return output.wait() if hasattr(output, "wait") else output


class Pending:
    """A tensor that the device is still at work on, and that is copied to the host then. ``wait`` returns it."""

    def __init__(self, result: Any) -> None:
        import torch

        self._host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        self._host.copy_(result, non_blocking=True)
        self._done = torch.cuda.current_stream(result.device).record_event()

    def wait(self) -> Any:
        self._done.synchronize()
        return self._host
