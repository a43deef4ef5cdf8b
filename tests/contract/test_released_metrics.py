"""The metrics that evaluate writes are those that the field's own libraries find for the released folder.

Each released folder is downloaded from the Hub and read by transformers or sentence-transformers, with nothing of ours. Their predictions on the
test split are measured by scikit-learn, SciPy, seqeval, torchmetrics or the evaluators of sentence-transformers.

Not here: masked_lm, whose masked tokens are drawn by chance, and grpo and iterative_sft, whose answers are rewarded by code of the recipe.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import snapshot_download
from scipy import stats
from sklearn import metrics as sklearn_metrics
from torch.nn import functional as F

from tasks.hub_server.server import LocalHub
from tasks.shards.split_rows import SplitRows
from tests.support import base_models, releases, tiny, tiny_releases
from trainer import objectives
from trainer.data import tokens
from trainer.model.network import build_untrained_model

TOKEN = "hf_" + "1" * 40
LIMIT = 64
"""Tokens, more than a row has."""
SIZES = {"train": 60, "validation": 8, "test": 40}
BETA = 0.1
"""The default of dpo and kto."""

Metrics = dict[str, float]


@dataclass(frozen=True)
class Release:
    """A released folder, and the rows of the test split."""

    folder: Path
    rows: list[dict[str, Any]]
    start: Path
    """The model before training."""

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.folder)

    def model(self, auto_class: str, folder: Path | None = None) -> Any:
        return getattr(transformers, auto_class).from_pretrained(folder or self.folder).eval()

    def logits(self, model: Any, *texts: str) -> torch.Tensor:
        with torch.inference_mode():
            return model(**self.tokenizer(*texts, return_tensors="pt")).logits[0].double()


def sequence_classification(release: Release) -> Metrics:
    classify = transformers.pipeline("text-classification", model=str(release.folder), top_k=None)
    found = classify([row["text"] for row in release.rows])
    labels = sorted(classify.model.config.label2id)
    shares = np.array([[{one["label"]: one["score"] for one in row}[name] for name in labels] for row in found])
    right, said = [row["label"] for row in release.rows], [labels[place] for place in shares.argmax(1)]
    return {
        "loss": sklearn_metrics.log_loss(right, shares / shares.sum(1, keepdims=True), labels=labels),
        "accuracy": sklearn_metrics.accuracy_score(right, said),
        "macro_f1": sklearn_metrics.f1_score(right, said, average="macro"),
    }


def multi_label_classification(release: Release) -> Metrics:
    model = release.model("AutoModelForSequenceClassification")
    names = [model.config.id2label[place] for place in range(model.config.num_labels)]
    logits = torch.stack([release.logits(model, row["text"]) for row in release.rows])
    right = np.array([[name in row["labels"] for name in names] for row in release.rows])
    said = (logits.sigmoid() > 0.5).numpy()
    return {
        "loss": float(F.binary_cross_entropy_with_logits(logits, torch.tensor(right).double())),
        "micro_f1": sklearn_metrics.f1_score(right, said, average="micro"),
        "macro_f1": sklearn_metrics.f1_score(right, said, average="macro"),
        "exact_match": sklearn_metrics.accuracy_score(right, said),
    }


def regression(release: Release) -> Metrics:
    model = release.model("AutoModelForSequenceClassification")
    said = np.array([float(release.logits(model, row["text"], row["label"])) for row in release.rows])
    right = np.array([row["number"] for row in release.rows])
    return {
        "mae": sklearn_metrics.mean_absolute_error(right, said),
        "pearson": stats.pearsonr(said, right).statistic,
        "spearman": stats.spearmanr(said, right).statistic,
    }


def token_classification(release: Release) -> Metrics:
    from seqeval import metrics as seqeval

    model = release.model("AutoModelForTokenClassification")
    right, said, losses = [], [], []
    for row in release.rows:
        (span,) = row["spans"]
        places = release.tokenizer(row["text"], return_offsets_mapping=True, return_special_tokens_mask=True)
        logits = release.logits(model, row["text"])
        own, predicted = [], []
        for offsets, is_special, found in zip(
            places["offset_mapping"], places["special_tokens_mask"], logits, strict=True
        ):
            if is_special:
                continue
            word = row["text"][slice(*offsets)]
            first, last = offsets[0] + len(word) - len(word.lstrip()), offsets[1]
            touched = first < span["end"] and last > span["start"]
            begun = any(tag != "O" for tag in own)
            own.append("O" if not touched else f"{'I' if begun else 'B'}-{span['label']}")
            predicted.append(model.config.id2label[int(found.argmax())])
            losses.append(float(F.cross_entropy(found, torch.tensor(model.config.label2id[own[-1]]))))
        right.append(own)
        said.append(predicted)
    return {
        "loss": float(np.mean(losses)),
        "token_accuracy": seqeval.accuracy_score(right, said),
        "precision": seqeval.precision_score(right, said),
        "recall": seqeval.recall_score(right, said),
        "f1": seqeval.f1_score(right, said),
    }


def question_answering(release: Release) -> Metrics:
    """The best span of a question that has no other window; the first token says that there is no answer."""
    from torchmetrics.functional.text import squad

    model, said, right, losses = release.model("AutoModelForQuestionAnswering"), [], [], []
    for number, row in enumerate(release.rows):
        encoded = release.tokenizer(
            row["question"],
            row["context"],
            return_tensors="pt",
            return_offsets_mapping=True,
        )
        offsets, parts = encoded.pop("offset_mapping")[0].tolist(), encoded.sequence_ids(0)
        with torch.inference_mode():
            found = model(**encoded)
        starts, ends = found.start_logits[0].double(), found.end_logits[0].double()
        places = [place for place, part in enumerate(parts) if part == 1]
        spans = [(float(starts[i] + ends[j]), i, j) for i in places for j in places if i <= j]
        best, first, last = max(spans, key=lambda span: span[0])
        answer = row["context"][offsets[first][0] : offsets[last][1]].strip()
        said.append({"id": str(number), "prediction_text": answer if best > float(starts[0] + ends[0]) else ""})
        texts, begins = row["answers"]["text"], row["answers"]["answer_start"]
        right.append({"id": str(number), "answers": row["answers"] if texts else {"text": [""], "answer_start": [0]}})
        ends_at = [begin + len(text) for text, begin in zip(texts, begins, strict=True)]
        target = [0, 0]
        if texts:
            inside = [i for i in places if offsets[i][0] < ends_at[0] and offsets[i][1] > begins[0]]
            target = [inside[0], inside[-1]]
        both = zip((starts, ends), target, strict=True)
        losses.append(float(sum(F.cross_entropy(logits, torch.tensor(place)) for logits, place in both)) / 2)
    found = squad(said, right)
    return {
        "loss": float(np.mean(losses)),
        "exact_match": float(found["exact_match"]) / 100,
        "f1": float(found["f1"]) / 100,
    }


def multiple_choice(release: Release) -> Metrics:
    model, logits, losses, right = release.model("AutoModelForMultipleChoice"), [], [], []
    for row in release.rows:
        encoded = release.tokenizer(
            [row["context"]] * len(row["choices"]), row["choices"], padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            found = model(**{name: value[None] for name, value in encoded.items()}).logits[0].double()
        right.append(row["choices"].index(row["label"]))
        logits.append(int(found.argmax()))
        losses.append(float(F.cross_entropy(found, torch.tensor(right[-1]))))
    return {"loss": float(np.mean(losses)), "accuracy": sklearn_metrics.accuracy_score(right, logits)}


def graded_documents(count: int, split: str) -> dict[str, list[Any]]:
    texts = tiny.sentences(count, len(split))
    return {
        "text": texts,
        "label": [text.split()[1] for text in texts],
        "number": [float(text.count(", again")) for text in texts],
    }


def ranking(release: Release) -> Metrics:
    from sentence_transformers import CrossEncoder

    encoder = CrossEncoder(str(release.folder), device="cpu")
    said = encoder.predict([(row["label"], row["text"]) for row in release.rows])
    grades = np.array([row["number"] for row in release.rows])
    queries = np.array([row["label"] for row in release.rows])
    found = []
    for query in set(queries):
        own, wanted = said[queries == query], grades[queries == query]
        ranked = wanted[np.argsort(-own)] > 0
        rank = 1 + int(ranked.argmax())
        ndcg = sklearn_metrics.ndcg_score([wanted], [own], k=10)
        found.append([ndcg, sklearn_metrics.average_precision_score(wanted > 0, own), 1 / rank if rank <= 10 else 0])
    loss = sklearn_metrics.log_loss  # of shares between 0 and 1, as two rows with weights
    right, both = grades / 3, np.clip(said.astype(np.float64), 1e-12, 1)
    weights = np.concatenate([right, 1 - right])
    entropy = loss([1] * len(said) + [0] * len(said), np.tile(both, 2), sample_weight=weights)
    return {"loss": entropy, **dict(zip(("ndcg_at_10", "map", "mrr_at_10"), np.mean(found, 0), strict=True))}


def embedding(release: Release) -> Metrics:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    encoder = SentenceTransformer(str(release.folder), device="cpu")
    documents = sorted({row["label"] for row in release.rows})
    evaluator = InformationRetrievalEvaluator(
        {str(number): row["text"] for number, row in enumerate(release.rows)},
        {name: name for name in documents},
        {str(number): {row["label"]} for number, row in enumerate(release.rows)},
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 10],
        map_at_k=[10],
        show_progress_bar=False,
        write_csv=False,
    )
    found = evaluator(encoder)
    names = {"ndcg_at_10": "ndcg@10", "mrr_at_10": "mrr@10", "recall_at_1": "recall@1", "recall_at_10": "recall@10"}
    return {own: found[f"cosine_{theirs}"] for own, theirs in names.items()}


def of_next_tokens(release: Release, pairs: list[tuple[str, str]]) -> Metrics:
    """The loss of answers behind prompts, each with its end of text."""
    model, losses, right, said, size = release.model("AutoModelForCausalLM"), [], [], [], 0
    for prompt, answer in pairs:
        encoded = release.tokenizer(f"{prompt}{answer}", return_offsets_mapping=True)
        ids = [*encoded["input_ids"], release.tokenizer.eos_token_id]
        first = max(
            sum(end <= len(prompt) for _, end in encoded["offset_mapping"]), 1
        )  # nothing predicts the first token
        size += len(f"{prompt}{answer}"[encoded["offset_mapping"][first - 1][1] :].encode())
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].double()
        for place in range(first, len(ids)):
            losses.append(float(F.cross_entropy(logits[place - 1], torch.tensor(ids[place]))))
            right.append(ids[place])
            said.append(int(logits[place - 1].argmax()))
    return {
        "loss": float(np.mean(losses)),
        "perplexity": math.exp(np.mean(losses)),
        "token_accuracy": sklearn_metrics.accuracy_score(right, said),
        "bits_per_byte": sum(losses) / math.log(2) / size,
    }


def causal_lm(release: Release) -> Metrics:
    return of_next_tokens(release, [("", row["text"]) for row in release.rows])


def sft(release: Release) -> Metrics:
    return of_next_tokens(release, [(row["text"], row["label"]) for row in release.rows])


def seq2seq(release: Release) -> Metrics:
    from torchmetrics.functional.text import rouge_score

    model, losses, right, said, answers = release.model("AutoModelForSeq2SeqLM"), [], [], [], []
    for row in release.rows:
        encoded = release.tokenizer(f"who: {row['text']}", return_tensors="pt")
        target = [*release.tokenizer(text_target=row["label"])["input_ids"], release.tokenizer.eos_token_id]
        labels = torch.tensor([target])
        with torch.inference_mode():
            logits = model(**encoded, labels=labels).logits[0].double()
            written = model.generate(**encoded, max_new_tokens=8, num_beams=1, do_sample=False)
        losses += F.cross_entropy(logits, labels[0], reduction="none").tolist()
        right += labels[0].tolist()
        said += logits.argmax(-1).tolist()
        answers.append(release.tokenizer.decode(written[0], skip_special_tokens=True).strip())
    wanted = [row["label"] for row in release.rows]
    rouge = rouge_score(answers, wanted, rouge_keys=("rouge1", "rougeL"))
    return {
        "loss": float(np.mean(losses)),
        "perplexity": math.exp(np.mean(losses)),
        "token_accuracy": sklearn_metrics.accuracy_score(right, said),
        "exact_match": sklearn_metrics.accuracy_score(wanted, answers),
        "rouge1": float(rouge["rouge1_fmeasure"]),
    }


def reward(release: Release) -> Metrics:
    model, margins = release.model("AutoModelForSequenceClassification"), []
    for row in release.rows:
        scores = []
        for answer in (row["label"], row["text"]):
            ids = release.tokenizer(f"{row['text']} =>{answer}")["input_ids"]
            with torch.inference_mode():
                scores.append(float(model(torch.tensor([[*ids, release.tokenizer.eos_token_id]])).logits[0, 0]))
        margins.append(scores[0] - scores[1])
    return {
        "loss": float(-F.logsigmoid(torch.tensor(margins).double()).mean()),
        "reward_accuracy": float(np.mean(np.array(margins) > 0)),
        "reward_margin": float(np.mean(margins)),
    }


def answer_logprob(release: Release, model: Any, prompt: str, answer: str) -> float:
    encoded = release.tokenizer(f"{prompt}{answer}", return_offsets_mapping=True)
    ids = torch.tensor([*encoded["input_ids"], release.tokenizer.eos_token_id])
    first = sum(end <= len(prompt) for _, end in encoded["offset_mapping"])
    with torch.inference_mode():
        found = model(ids[None]).logits[0].double().log_softmax(-1)
    return float(found[range(first - 1, len(ids) - 1), ids[first:]].sum())


def dpo(release: Release) -> Metrics:
    models = release.model("AutoModelForCausalLM"), release.model("AutoModelForCausalLM", release.start)
    rewards, logprobs = [], []
    for row in release.rows:
        pair = [[answer_logprob(release, m, f"{row['text']} =>", row[a]) for m in models] for a in ("label", "text")]
        logprobs.append([own for own, _ in pair])
        rewards.append([BETA * (own - before) for own, before in pair])
    chosen, rejected = np.array(rewards).T
    margins = torch.tensor(chosen - rejected)
    return {
        "loss": float(-F.logsigmoid(margins).mean()),
        "reward_margin": float(margins.mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
        "chosen_logprob": float(np.mean(logprobs, 0)[0]),
        "rejected_logprob": float(np.mean(logprobs, 0)[1]),
    }


def kto(release: Release) -> Metrics:
    models = release.model("AutoModelForCausalLM"), release.model("AutoModelForCausalLM", release.start)
    rewards, liked = [], np.array([row["liked"] for row in release.rows])
    for row in release.rows:
        own, before = (answer_logprob(release, model, f"{row['text']} =>", row["label"]) for model in models)
        rewards.append(BETA * (own - before))
    found = np.array(rewards)
    return {
        "roc_auc": sklearn_metrics.roc_auc_score(liked, found),
        "desirable_reward": float(found[liked].mean()),
        "undesirable_reward": float(found[~liked].mean()),
        "reward_margin": float(found[liked].mean() - found[~liked].mean()),
    }


RECOMPUTED: dict[str, Callable[[Release], Metrics]] = {
    one.__name__: one
    for one in (
        sequence_classification,
        multi_label_classification,
        regression,
        token_classification,
        question_answering,
        multiple_choice,
        ranking,
        embedding,
        causal_lm,
        sft,
        seq2seq,
        reward,
        dpo,
        kto,
    )
}

QUICK = ("token_classification",)
STEPS = {"multiple_choice": 2}
"""Trained for longer, the tiny model gives all choices of a row one logit, and rounding decides which is the highest."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Any:
    root = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch, LocalHub(root / ".hub", tokens={TOKEN: "tests"}) as running:
        base_models.use_hub(patch, running.endpoint, TOKEN, root / "cache")
        patch.setattr(tiny_releases, "SIZES", SIZES)
        patch.setitem(tiny_releases.OWN_ROWS, "ranking", graded_documents)
        yield running


def release_of(name: str, root: Path) -> tuple[Release, Metrics]:
    """Publish the tiny model of an objective; return what was released, and the metrics that evaluate wrote."""
    artifacts, recipe = tiny_releases.evaluated(root / "project", name, steps=STEPS.get(name), max_length=LIMIT)
    assert releases.publish(artifacts, recipe).status == "published"
    parts = {
        "objective": objectives.build_objective(recipe.objective),
        "tokenizer": tokens.read_tokenizer(artifacts.tokens),
    }
    state = tokens.read_objective_state(artifacts.tokens)
    build_untrained_model(recipe.model, **parts, state=state, seed=recipe.seed).save_pretrained(root / "start")
    rows = list(SplitRows(artifacts.rows / "test").rows())
    folder = Path(snapshot_download(f"tests/{name}", local_dir=root / "released"))
    found = json.loads((artifacts.evaluation / "metrics.json").read_text())["model"]
    return Release(folder, rows, root / "start"), found


@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RECOMPUTED])
def test_metrics_are_those_that_the_field_finds_for_the_released_folder(hub, name: str, tmp_path: Path) -> None:
    release, written = release_of(name, tmp_path)
    assert len(release.rows) == SIZES["test"]
    found = RECOMPUTED[name](release)
    assert {one: written[one] for one in found} == pytest.approx(found, rel=1e-4, abs=1e-5)
