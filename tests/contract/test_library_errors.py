"""Libraries whose errors have no type of their own: their messages still have the words that we look for."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from tests.support import forked
from tests.support.project import ROOT
from trainer.runtime.library_errors import is_lost_peer, is_out_of_memory

WRITERS = {
    "safetensors": "import safetensors.torch; safetensors.torch.save_file({'a': torch.zeros(1 << 16)}, path)",
    "torch": "torch.save({'a': torch.zeros(1 << 16)}, path)",
    "tokenizers": "from tokenizers import Tokenizer, models; "
    "Tokenizer(models.WordLevel({f'word {i}': i for i in range(20_000)}, unk_token='word 0')).save(path)",
    "pyarrow": "import pyarrow as pa, pyarrow.parquet as pq; pq.write_table(pa.table({'a': list(range(200_000))}), path)",
    "write_array": "from params.foundation.artifacts import write_array; write_array(Path(path), torch.zeros(1 << 16).numpy())",
}
LIMITED = """
import resource, signal, sys
import torch
from pathlib import Path
from params import StorageError
from params.foundation.artifacts import translate_disk_errors

path = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    with translate_disk_errors(Path(path)):
        {write}
except StorageError as error:
    print(error)
"""
RANK = """
import json, os, sys
import torch.distributed as dist
from torch import ones

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.all_reduce(ones(4))
if rank == 1:
    os._exit(3)
try:
    while True:
        dist.all_reduce(ones(4))
except Exception as error:
    print(json.dumps(str(error)))
    print(type(error).__name__)
    from trainer.runtime.library_errors import is_lost_peer
    print(is_lost_peer(error), flush=True)
    os._exit(0)  # gloo's threads may abort an ordinary exit, before it has written what was printed
"""


@pytest.mark.parametrize("library", WRITERS)
def test_a_write_that_the_disk_refuses_is_a_storage_error(library: str, tmp_path: Path) -> None:
    code = LIMITED.format(write=WRITERS[library])
    done = subprocess.run(
        [forked.python(), "-c", code, str(tmp_path / "file")], capture_output=True, text=True, check=False, timeout=60
    )
    assert "MiB free on that disk" in done.stdout, done.stderr
    assert "ulimit -f unlimited" in done.stdout


def test_the_allocator_of_the_processor_says_that_memory_ran_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    assert is_out_of_memory(caught.value)
    assert not is_lost_peer(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("any words"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape mismatch"))


def test_gloo_says_that_the_other_process_is_gone(tmp_path: Path) -> None:
    command = [forked.python(), "-c", RANK]
    with subprocess.Popen([*command, "1", str(tmp_path / "meet")]):
        rank_0 = [*command, "0", str(tmp_path / "meet")]
        said = subprocess.run(rank_0, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    message, _, is_lost = said.splitlines()
    assert is_lost == "True", json.loads(message)
    assert is_lost_peer(torch.distributed.DistNetworkError("any words"))
    assert not is_lost_peer(RuntimeError("shape mismatch"))


def test_arrays_are_written_without_numpys_own_errors() -> None:
    """Numpy's OSError for a full disk has no number, so it would not be told as one."""
    files = [path for name in ("params", "trainer", "tasks", "flows") for path in Path(ROOT, name).rglob("*.py")]
    found = {path.name for path in files if re.search(r"\.tofile\(|\bnp\.save\w*\(", path.read_text())}
    assert found == set(), "use params.foundation.artifacts.write_array"
