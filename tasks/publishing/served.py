"""The last look at a release before it is sent: whoever reads it as its model card says gets the answers that were judged.

The Python code on the card is run on the planned files. Each model that it loads scores some of the held-out rows, and answers the
call that the card shows, one row at a time. The scores must be those of the evaluate stage, up to rounding.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from params import ModelError, TransientError
from params.foundation.artifacts import write_text_atomically
from params.foundation.errors import see_limits
from params.foundation.hashing import file_sha256
from tasks.evaluation.reading import ModelTokenization
from tasks.progress import iterate_with_progress
from tasks.publishing.candidate import Candidate
from tasks.publishing.release_plan import ReleasePlan
from tasks.shards.split_rows import SplitRows
from trainer import objectives
from trainer.data import tokens
from trainer.data.tokens import Sequences
from trainer.model.limits import window_overlap
from trainer.model.use_settings import read_number_format
from trainer.objectives.bases.lazy_imports import PreTrainedModel, PreTrainedTokenizerBase, torch, transformers
from trainer.objectives.bases.objective import EncodedRow, Objective, ObjectiveState, Row
from trainer.objectives.bases.texts.padding import put_padding_before_text
from trainer.runtime.library_errors import is_hub_away

ROWS: Final = 32
"""How many rows are read again at most: the longest, and others evenly over the split."""
_LONGEST: Final = 8
_MAX_SEQUENCES: Final = 256
"""How many sequences these rows have at most, unless one row has more."""
TOLERANCE: Final = 1e-4
"""How far a score may be from the evaluated one, relative to it where it is above 1. In single precision, another batch, another
device or an adapter that is not merged changes the sixth digit; half precision changes the third or fourth."""
_ROUNDED: Final = 0.02
"""The same for adapters by themselves, if the merged weights that were evaluated are rounded to the base model's 16 bits."""
_MAY_DIFFER: Final = 0.1
"""The share of rows whose discrete answers, a text or spans, may differ: where two are equally likely, rounding decides."""
_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class ModelLoadedByCard:
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pipeline: Any | None


@dataclass(frozen=True)
class EvaluatedRow:
    """A row as the evaluate stage scored it."""

    row: Row
    encoded: EncodedRow
    scores: Mapping[str, float]


def check_same_answers(candidate: Candidate, release: ReleasePlan) -> None:
    """Refuse the planned files if they give other answers than those that were judged.

    A release that was found to give them is not looked at again, however often publishing it is retried.

    Raises:
        ModelError: they do, or the card's code fails.
        TransientError: the base model of adapters cannot be loaded now.
    """
    folder = release.folder
    if release.weights != candidate.weights:
        what = "the release holds other weights than those that were evaluated"
        raise ModelError(str(folder), what, "run the evaluate stage again")
    artifacts, report = candidate.artifacts, candidate.evaluated
    scores = artifacts.evaluation / "scores" / "model.parquet"
    key = f"{release.publish_id} {file_sha256(scores)}\n"
    if artifacts.served_release.exists() and artifacts.served_release.read_text(encoding="utf-8") == key:
        return
    own = ModelTokenization.of_candidate(artifacts, objectives.build_objective(candidate.objective))
    read = own.encoder(report.max_length, tokens.read_objective_state(artifacts.tokens))
    is_rounded = read_number_format(artifacts.model) != "float32"
    evaluation = AnswerChecker(read.objective, read.state, own.tokenizer, read.max_length, str(folder), is_rounded)
    sequences = tokens.read_split(artifacts.tokens, report.split)
    judged = evaluation.rows(scores, SplitRows(artifacts.rows / report.split), sequences)
    card = (folder / "README.md").read_text(encoding="utf-8")
    for reader in load_with_card_code(folder, release.repo_id, card):
        evaluation.check(reader, judged)
    write_text_atomically(artifacts.served_release, key)


def load_with_card_code(folder: Path, repo_id: str, card: str) -> Iterator[ModelLoadedByCard]:
    """Yield what each piece of code in the card's section `Use` loads from `folder`; only one model is in memory at a time."""
    tokenizer: PreTrainedTokenizerBase | None = None
    for code in _CODE.findall(card.partition("\n## Metrics\n")[0]):
        local = code.replace(json.dumps(repo_id), repr(str(folder.resolve())))
        names: dict[str, Any] = {}
        if tokenizer is not None:
            gc.collect()  # the model before
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                # peft 0.21.2 causes it
                warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
                exec(compile(local, "README.md", "exec"), names)  # noqa: S102 (the card's own code, which is ours)
        except Exception as error:
            if is_hub_away(error):
                fix = "try again when the Hub is reachable"
                raise TransientError(str(folder), f"the base model cannot be downloaded: {error}", fix) from error
            what = f"the code on its model card fails: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            fix = f"correct the model's or the tokenizer's files; this code of {folder / 'README.md'} must run"
            raise ModelError(str(folder), what, fix) from error
        pipeline = next((value for value in names.values() if isinstance(value, transformers.Pipeline)), None)
        whole = pipeline or names["model"]  # a SentenceTransformer, too, holds its network and its tokenizer
        tokenizer = getattr(whole, "tokenizer", None) or names.get("tokenizer", tokenizer)
        assert tokenizer is not None, "the first piece of code loads a tokenizer"
        network = pipeline.model if pipeline else getattr(whole, "transformers_model", whole)
        names.clear()
        yield ModelLoadedByCard(network.eval(), tokenizer, pipeline)
        del network, pipeline, whole


@dataclass(frozen=True)
class AnswerChecker:
    """How the evaluate stage read rows, with which a reader's answers are compared."""

    objective: Objective[Any]
    state: ObjectiveState
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    """Most tokens of a sequence."""
    where: str
    """The release in messages."""
    is_rounded: bool = False
    """Whether the evaluated weights are in 16 bits."""

    def rows(self, scores: Path, rows: SplitRows, sequences: Sequences) -> list[EvaluatedRow]:
        """Return the rows to read again: the longest that were evaluated, then others evenly over the split."""
        import pyarrow.parquet as pq

        table = pq.read_table(scores)
        ids = table["row_id"].to_numpy()
        longest = np.argsort(-sequences.lengths(), kind="stable")[: 4 * _LONGEST]
        long = dict.fromkeys(int(example["row_id"]) for example in sequences.__getitems__(longest.tolist()))
        even = ids[np.unique(np.linspace(0, len(ids) - 1, ROWS).astype(int))].tolist()
        chosen = list(dict.fromkeys([*[one for one in long if one in ids][:_LONGEST], *even]))[:ROWS]
        found = []
        for row in rows.pick(chosen):
            (encoded,) = self.objective.encode([row], self.tokenizer, self.max_length, self.state)
            (known,) = table.slice(int(np.searchsorted(ids, row["row_id"])), 1).drop_columns("row_id").to_pylist()
            found.append(EvaluatedRow(row, encoded, known))
        found.sort(key=lambda one: len(one.encoded.examples))
        sizes = np.cumsum([len(one.encoded.examples) for one in found])
        return found[: max(1, int((sizes <= _MAX_SEQUENCES).sum()))]

    def check(self, reader: ModelLoadedByCard, rows: Sequence[EvaluatedRow]) -> None:
        """Compare what a reader gets of each row with its scores; ModelError if it is something else."""
        own, is_unmerged = self.objective.served_scores, hasattr(reader.network, "peft_config")
        allowed = _ROUNDED if self.is_rounded and is_unmerged else TOLERANCE
        for what, measure in self._comparisons(reader):
            differing: dict[int, str] = {}
            for one in iterate_with_progress(rows, what=f"publish: {what}", total=len(rows)):
                row_id = int(one.row["row_id"])
                try:
                    with torch.inference_mode():
                        found = measure(one)
                except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
                    raise self._refusal(row_id, " ".join(str(error).split())[:500], reader) from error
                for name, value in found.items():
                    judged = float(one.scores[name])
                    if not abs(value - judged) <= allowed * max(1.0, abs(judged)):  # NaN is no answer
                        told = f"{name} is {value:.6g}, and was {judged:.6g} in the evaluation"
                        if name in own:
                            raise self._refusal(row_id, told, reader)
                        differing.setdefault(row_id, told)
            if len(differing) > _MAY_DIFFER * len(rows):
                row_id, told = next(iter(differing.items()))
                raise self._refusal(row_id, f"{told}; {len(differing)} of {len(rows)} rows differ", reader)

    def _comparisons(
        self, reader: ModelLoadedByCard
    ) -> Iterator[tuple[str, Callable[[EvaluatedRow], Mapping[str, float]]]]:
        yield "rows asked as on the card", partial(self._answer_scores, reader)
        if self.objective.served_scores:
            network = put_padding_before_text(self.objective.remap_labels(reader.network, self.state))
            self.objective.set_reference(lambda: network)
            yield "rows scored as the release reads them", partial(self._row_scores, replace(reader, network=network))

    def _row_scores(self, reader: ModelLoadedByCard, one: EvaluatedRow) -> Mapping[str, float]:
        """Return the `served_scores` of a row under a model, as the reader's own tokenizer encodes the row."""
        from trainer.loop.metrics import EvaluationMetrics

        objective, limit = self.objective, min(reader.tokenizer.model_max_length, self.max_length)
        (encoded,) = objective.encode([one.row], reader.tokenizer, limit, self.state)
        if not encoded.examples:
            raise ValueError("the tokenizer of the release makes no tokens of it")
        metrics = EvaluationMetrics(objective, state=self.state, tokenizer=reader.tokenizer, metrics=None)
        parts = [parts[0][0] for _, parts in metrics.batches(reader.network, encoded.examples, batch_size=1)]
        scores = objective.scores_of_split(torch.stack(parts).double().numpy(), self.state).sum(0).tolist()
        found = dict(zip(objective.score_names(self.state), scores, strict=True))
        return {name: found[name] for name in objective.served_scores}

    def _answer_scores(self, reader: ModelLoadedByCard, one: EvaluatedRow) -> Mapping[str, float]:
        """Return the scores of a row that follow from the call on the card; empty if the row is left out.

        Rows that the evaluation cut are left out if that call does not cut them at the same place, and so are those that it split.
        """
        objective, network, tokenizer, ready = self.objective, reader.network, reader.tokenizer, reader.pipeline
        cuts_alike = tokenizer.model_max_length == self.max_length and objective.reader_cuts
        is_called = ready is not None or objective.has_target_text
        is_whole = len(one.encoded.examples) == 1 and (cuts_alike or not one.encoded.is_truncated)
        if not is_called or not is_whole or objective.reader_input(one.row) is None:
            return {}

        def ask(text: Any, **more: Any) -> Any:
            """The call on the card."""
            arguments = {**objective.call_arguments, **objective.reader_arguments(one.row), **more}
            if objective.reader_strides:
                arguments["stride"] = window_overlap(tokenizer.model_max_length)
            if ready is None:
                inputs = tokenizer(text, truncation=objective.reader_cuts, return_tensors="pt").to(network.device)
                return tokenizer.decode(network.generate(**inputs, **arguments)[0], skip_special_tokens=True)
            if objective.pipeline_tag == "text-generation":
                return ready(text, return_tensors=True, **arguments)[0]["generated_token_ids"]
            return ready(text, **arguments)

        return objective.answer_scores(ask, one.row, one.encoded.examples[0], tokenizer)

    def _refusal(self, row_id: int, told: str, reader: ModelLoadedByCard) -> ModelError:
        what = f"the release would answer otherwise than it was judged: row_id {row_id}: {told}"
        fix = "load these files to see more"
        if reasons := list(self._reasons(reader)):
            what += f"; likely because {'; '.join(reasons)}"
            fix = "correct that in the base model or the recipe, and run it again"
        fix += f"; nothing was sent, and the files are still there{see_limits('model')}"
        return ModelError(self.where, what, fix)

    def _reasons_of_labels(self, config: Any) -> Iterator[str]:
        labels = self.state.get("labels")
        if not labels:
            return
        if [config.id2label.get(number) for number in range(len(labels))] != labels:
            yield "id2label in its config.json names the outputs otherwise than they were learned"
        problem_type = getattr(config, "problem_type", None)
        usual = self.objective.model_config(self.state).get("problem_type")
        if problem_type not in {None, usual, "single_label_classification"}:
            yield f"problem_type in its config.json is {problem_type}, so its probabilities do not add up to one"

    def _reasons(self, reader: ModelLoadedByCard) -> Iterator[str]:
        """Yield what about a release is not as it was when it was evaluated."""
        own, judged, config = reader.tokenizer, self.tokenizer, reader.network.config
        if own.model_max_length < self.max_length:
            yield f"its tokenizer cuts texts at {own.model_max_length} tokens, and the evaluation at {self.max_length}"
        if own.chat_template != judged.chat_template:
            yield "its tokenizer has another chat template"
        if own.get_vocab() != judged.get_vocab():
            yield "its tokenizer has another vocabulary"
        yield from self._reasons_of_labels(config)
        kinds = {weight.dtype for weight in reader.network.parameters() if weight.dtype.is_floating_point}
        if coarse := sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32}):
            yield f"its weights are read as {', '.join(coarse)}"
        if hasattr(reader.network, "peft_config"):
            yield "its adapters by themselves compute something else than merged ones, as they do on tied weights"
