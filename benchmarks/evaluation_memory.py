"""Peak memory of the evaluate stage with N and with 10 N rows: it must not grow with the rows.

    python -m benchmarks.evaluation_memory [rows]

The model has a vocabulary of 32,000, so the logits of a batch of 16 sequences of 128 tokens take 250 MiB: a stage that
kept them would need 15 GiB for a thousand rows. Each evaluation runs in its own process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from params.foundation.artifacts import SPLITS, Artifacts
from params.schema import Launch
from params.sections.data import Data
from tasks.recipes.loading import load

ROOT = Path(__file__).parents[1]
RECIPE = """\
seed: 1
data: {source: {kind: files, train: none.csv}}
validation: {}
tokenization: {tokenizer: {kind: train, vocab_size: 400}, max_length: 128}
objective: {name: causal_lm}
model:
  config: {model_type: llama, vocab_size: 32000, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 4, tie_word_embeddings: true}
training: {max_steps: 1, global_batch_size: 1, learning_rate: 1e-3, eval_steps: 1, save_steps: 1}
launch: {micro_batch_size: 1, eval_batch_size: 16}
evaluation: {compare_untrained: false}
publish: {repo_id: benchmarks/memory}
"""


def prepare(root: Path, rows: int) -> None:
    """Make what a run leaves up to its training, with `rows` test rows of about 128 tokens."""
    from tasks.ingestion.stage import ingest
    from tasks.tokenization.stage import tokenize
    from trainer import objectives
    from trainer.data import tokens
    from trainer.model.network import build_model_to_train

    (root / "params").mkdir(parents=True)
    path = root / "params" / "memory.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    recipe, artifacts = load(path), Artifacts("memory", root)
    for split, count in {"train": 100, "validation": 10, "test": rows}.items():
        texts = [" ".join(f"{(i * 31 + k * 7) % 97:02d}" for k in range(43)) for i in range(count)]
        (root / f"{split}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    source = {"kind": "files", **{split: f"{split}.jsonl" for split in SPLITS}}
    ingest(artifacts, data=Data.model_validate({"source": source}), seed=0, launch=Launch(micro_batch_size=1))
    shutil.copytree(artifacts.raw, artifacts.rows)
    tokenize(artifacts, tokenization=recipe.tokenization, objective=recipe.objective, launch=recipe.launch)
    network = build_model_to_train(
        recipe.model,
        objective=objectives.build_objective(recipe.objective),
        state={},
        tokenizer=tokens.read_tokenizer(artifacts.tokens),
        seed=recipe.seed,
    )
    network.save_pretrained(artifacts.model)


def evaluate(root: Path) -> None:
    """Run the stage; this is the process whose memory is measured."""
    from tasks.evaluation.stage import evaluate as run

    recipe = load(root / "params" / "memory.yaml")
    sections = {name: getattr(recipe, name) for name in ("seed", "objective", "model", "evaluation", "launch")}
    run(Artifacts("memory", root), repo_id=recipe.publish.repo_id, endpoint=recipe.publish.endpoint, **sections)


def peak_mib(root: Path) -> tuple[float, float]:
    """Return the peak anonymous memory of an evaluation in MiB, without mapped files, and its seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "65536"}
    start, peak = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, __file__, "--evaluate", str(root)], env=environment)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))])
        time.sleep(0.01)
    if process.returncode:
        sys.exit(f"the evaluation ended with {process.returncode}")
    return peak / 1024, time.monotonic() - start


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{'rows':>8} {'peak MiB':>10} {'seconds':>9}", flush=True)
    peaks = []
    for count in (rows, 10 * rows):
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder), count)
            peak, seconds = peak_mib(Path(folder))
        peaks.append(peak)
        print(f"{count:>8,} {peak:>10.1f} {seconds:>9.1f}", flush=True)
    print(f"{'ratio':>8} {peaks[1] / peaks[0]:>10.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--evaluate"]:
        evaluate(Path(sys.argv[2]))
    else:
        main()
