"""The keys of a recipe: one frozen pydantic model per section, one docstring per key.

Keys without a default here get one from params/defaults.py, which depends on the objective and the model. No DVC stage declares
`launch`: it says where a run happens (processes, micro-batch, workers), not what is learned.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PlainSerializer,
    PositiveFloat,
)
from pydantic import model_validator as validate_model
from pydantic_core import PydanticCustomError

_MAX_INT = 2**31 - 1
PositiveInt = Annotated[int, Field(gt=0, le=_MAX_INT)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MAX_INT)]
Seconds = Annotated[float, Field(gt=0.0, le=31_536_000.0)]
"""A time limit of at most a year; Python's timers fail above a few hundred years."""
Hours = Annotated[float, Field(ge=0.0, le=8_760.0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
IMPORTABLE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
Importable = Annotated[str, Field(pattern=IMPORTABLE)]
"""A Python object, as `package.module:name`."""


Direction = Literal["min", "max"]
"""Whether the smallest or the largest value of a metric is best."""


class Section(BaseModel):
    """A section of a recipe: frozen, without unknown keys, strict about types, and with finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def conflict_error(what: str, fix: str) -> PydanticCustomError:
    """Return the error that a section raises when its keys do not fit together."""
    return PydanticCustomError("conflict", "{what}", {"what": what, "fix": fix})


def _whole_steps(value: float) -> float:
    if value >= 1 and value != int(value):
        what = f"{value} is neither a number of steps nor a share of them"
        raise conflict_error(what, "write a whole number, or one below 1")
    return int(value) if value >= 1 else value


Interval = Annotated[
    float, Field(gt=0.0, le=_MAX_INT), AfterValidator(_whole_steps), PlainSerializer(lambda value: value)
]
"""Optimizer steps, or a share of all steps."""
_REPO_NAME = re.compile(r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_RESERVED_OWNERS = frozenset({"api", "buckets", "datasets", "kernels", "models", "spaces", "uploads"})


def repo_id_problem(repo_id: str) -> str | None:
    """Return why the Hub or its client refuses `repo_id`, or None; an owner is not required."""
    owner, _, name = repo_id.rpartition("/")
    for part in filter(None, (owner, name)):
        if not _REPO_NAME.fullmatch(part):
            return f"{part!a} is not 1 to 96 letters, digits, `-`, `_` and `.`, starting and ending with no `-` or `.`"
    if "--" in repo_id or ".." in repo_id:
        return "it contains `--` or `..`"
    if repo_id.endswith(".git") or owner.endswith(".git"):
        return "a name ends in `.git`"
    if owner.lower() in _RESERVED_OWNERS:
        return f"`{owner}` is not an owner, but a page of the Hub"
    return None if name else "it has no name"


def _check_repo_id(repo_id: str) -> str:
    if problem := repo_id_problem(repo_id):
        raise conflict_error(f"the Hub refuses {repo_id!a}: {problem}", "write another `owner/name`")
    return repo_id


def _require_one(section: Section, first: str, second: str) -> None:
    """Refuse a section that sets both of two keys, or neither."""
    lacks_first = getattr(section, first) is None
    if lacks_first == (getattr(section, second) is None):
        fix = "add one of them" if lacks_first else "remove one of them"
        raise conflict_error(f"needs exactly one of `{first}` and `{second}`", fix)


class Call(Section):
    """A Python function or class, and the arguments to call it with."""

    name: Importable
    """`package.module:name`."""
    arguments: dict[str, Any] = {}
    """Keyword arguments, besides those that the pipeline passes."""


def _from_text(key: str) -> BeforeValidator:
    """Let a text stand for a section that gives only this key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


CallOrName = Annotated[Call, _from_text("name")]
"""`package.module:name`, or `{name: package.module:name, arguments: {...}}`."""


class _SplitPatterns(Section):
    """Where a source has the rows of each split: paths or globs, relative to the root of the project or of the dataset."""

    train: str
    """Path or glob of the training rows, such as `data/train-*.parquet`; `data.split` takes the missing splits from them."""
    validation: str | None = None
    """Path or glob of the rows that choose the best checkpoint."""
    test: str | None = None
    """Path or glob of the held-out rows that the model is evaluated on."""

    @property
    def patterns(self) -> dict[str, str]:
        """The path or glob of each split that the source has."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: pattern for split, pattern in patterns.items() if pattern is not None}


class RowsFromFiles(_SplitPatterns):
    """Rows from local files. The suffix says the format: .csv, .tsv, .jsonl, .json, .parquet or .txt.

    Those of text may be compressed (.gz, .bz2, .zst). A .csv file has commas, semicolons, tabs or vertical bars, as its header says.
    """

    kind: Literal["files"]
    text_unit: Literal["line", "paragraph", "file"] = "paragraph"
    """What one row of a .txt file is. Blank lines separate paragraphs."""
    refresh: bool = False
    """Bring files that `dvc import`, `dvc import-url` or `dvc import-db` brought up to date in every run of the flow, as
    `dvc update` does, if they have changed where they come from; see `launch.keep_rows_hours`."""


class RowsFromHubDataset(_SplitPatterns):
    """Rows from a dataset repository on a Hub: of one commit, or the newest of a branch."""

    kind: Literal["hub"]
    repo_id: Annotated[str, AfterValidator(_check_repo_id)]
    """Repository, as `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^\w[\w./-]*$")]
    """Full commit hash, or a branch such as `main`: then the flow asks in every run whether it has a new commit, see
    `launch.keep_rows_hours`. The run's report names the commit."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s@]+(/\S*)?$")] | None = None
    """URL of the Hub. Default: the one that huggingface_hub uses."""

    @property
    def is_pinned(self) -> bool:
        """Whether `revision` is a commit, which does not move."""
        return bool(re.fullmatch("[0-9a-f]{40}", self.revision))


class RowsFromSql(Section):
    """Rows from a query. The flow repeats it in every run (`launch.keep_rows_hours`): DVC cannot watch a database."""

    kind: Literal["sql"]
    url: str
    """SQLAlchemy URL. `${NAME}` stands for an environment variable, which keeps passwords out of the recipe."""
    query: str
    """SELECT statement that returns the rows. Give it an ORDER BY: training depends on the order of the rows."""


class RowsFromFunction(Section):
    """Rows that a Python function yields."""

    kind: Literal["function"]
    function: Importable
    """`package.module:name` of a function that yields one dict per row."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the function."""
    refresh: bool = False
    """Call the function in every run of the flow, even if no file that DVC watches has changed; see
    `launch.keep_rows_hours`."""


Source = Annotated[RowsFromFiles | RowsFromHubDataset | RowsFromSql | RowsFromFunction, Field(discriminator="kind")]
_files_from_text = BeforeValidator(lambda own: {"kind": "files", "train": own} if isinstance(own, str) else own)
"""Let a path or glob stand for the files of a source without splits."""


def _require_fixed(source: RowsFromFiles | RowsFromHubDataset) -> RowsFromFiles | RowsFromHubDataset:
    if len(source.patterns) > 1:
        raise conflict_error("a suite has no splits", "keep only the `train` of its source")
    if isinstance(source, RowsFromHubDataset) and not source.is_pinned:
        raise conflict_error(f"{source.revision} is a branch, which moves", "write the full hash of a commit")
    if isinstance(source, RowsFromFiles) and source.refresh:
        raise conflict_error("rows that every model must get right do not change by themselves", "remove `refresh`")
    return source


class SplitFractions(Section):
    """How to split rows that come without a split. A hash of its content decides, so a row stays in its split."""

    validation: Fraction = 0.05
    """Share of the rows for the validation split, which chooses the best checkpoint. Unused with a validation file."""
    test: Fraction = 0.05
    """Share of the rows for the test split, which the model is evaluated on. Unused with a test file."""
    stratify: str | None = None
    """A column, such as the label. Each of its values has at least one training row: if all rows of a label would be held out,
    the last of them goes to `train`. It moves back when a later one comes; all others keep their split."""


class Data(Section):
    """Where the rows come from, and how they are split."""

    source: Source
    corpus: Annotated[Source | None, _files_from_text] = None
    """Documents among which the held-out queries have to find theirs, for objectives that rank documents: a path or glob, or
    the keys of a source without held-out splits. Default: the documents of the held-out rows."""
    corrections: Annotated[RowsFromFiles | None, _files_from_text] = None
    """Labels that replace those of the source, such as review.csv with its column `corrected_label` filled in: a path or glob, or the keys
    of a source of kind `files` with `train` alone."""
    split: SplitFractions = SplitFractions()
    group_by: list[str] = []
    """Columns whose equal values say that rows belong together, such as those of one customer. `split` keeps them in one
    split, validation sets training rows aside whose group is in a held-out split of the source, and the gate counts them as one
    observation. A row that has no value in any of them (null, NaN or blank text) is on its own. Default: each row is on its own."""

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by their keys."""
        named = {"source": self.source, "corpus": self.corpus, "corrections": self.corrections}
        return {name: source for name, source in named.items() if source}

    @validate_model(mode="after")
    def _has_no_splits(self) -> Data:
        for name in ("corpus", "corrections"):
            if isinstance(own := getattr(self, name), _SplitPatterns) and len(own.patterns) > 1:
                raise conflict_error(f"`{name}` has no splits: every split has all of it", "keep only its `train`")
        return self

    @validate_model(mode="after")
    def _splits_rows_in_one_way(self) -> Data:
        if self.group_by and self.split.stratify:
            what = "`split.stratify` moves single rows, and rows of one group (`group_by`) must stay in one split"
            raise conflict_error(what, "remove one of the two keys")
        return self


class Expectation(Section, extra="allow"):
    """One Great Expectations check. All other keys are arguments of the expectation."""

    type: str
    """Snake-case name, for example `expect_column_value_lengths_to_be_between`."""
    on_failure: Literal["quarantine", "fail", "report"] = "quarantine"
    """`quarantine` sets failing rows aside, `fail` ends the stage if any row fails, `report` only counts them."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the expectation."""
        return dict(self.__pydantic_extra__ or {})


class Drift(Section):
    """Whether the new rows are like those that the published model learned from. docs/drift.md says how often it errs."""

    on_drift: Literal["report", "fail", "off"] = "report"
    """`report` shows what moved, `fail` also ends the stage, `off` neither compares nor publishes a profile of the rows."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """The chance that no comparison calls new rows different that are like the others (Holm 1979)."""
    min_new_labels: Fraction = 0.005
    """Smallest share of new rows with labels that the published model does not know that counts as drift."""
    min_label_change: Fraction = 0.02
    """Smallest total variation distance of the labels, above that of chance, that counts as drift: the share of rows with
    another label."""
    min_distance: NonNegativeFloat = 0.1
    """Smallest Wasserstein distance of a number, or of the length of a text, in standard deviations, that counts as drift."""
    min_auc: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.55
    """Smallest area under the ROC curve of a classifier that tells new texts from known ones that counts as drift."""
    min_confidence_fall: Fraction = 0.02
    """Smallest fall of the published model's mean confidence, from 0 to 1, from held-out to new rows that counts as drift."""
    ignore: list[str] = []
    """Columns of numbers that are not compared, such as one that grows with time."""


class NearDuplicates(Section):
    """Rows of the train split that say nearly the same as a held-out row, or as an earlier training row."""

    action: Literal["report", "quarantine"] = "report"
    """`report` counts them, `quarantine` sets them aside; of training rows that are alike, the first one stays."""
    threshold: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.8
    """Smallest Jaccard index of the sets of five characters in a row that are in two texts, for the texts to be nearly the same."""


class Validation(Section):
    """Checks of the rows, besides those that the objective makes."""

    expectations: list[Expectation] = []
    max_quarantined: Fraction = 0.01
    """Largest share of rows that may be set aside. The stage fails above it."""
    near_duplicates: Annotated[NearDuplicates, _from_text("action")] | None = None
    """Look for training rows that nearly repeat others: `report`, `quarantine`, or its keys. Default: rows are not compared."""
    drift: Annotated[Drift, _from_text("on_drift")] = Drift()
    """Comparison of new rows with those that the published model learned from: `report`, `fail`, `off`, or its keys. Without
    it, `report`, and releases to public repositories carry no profile of the rows to compare with."""


class TrainTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the train split."""

    kind: Literal["train"]
    vocab_size: Annotated[int, Field(ge=260, le=_MAX_INT)]
    """Number of tokens, including the 256 bytes and the special tokens."""
    min_frequency: PositiveInt = 2
    """Smallest number of times that a pair of tokens must occur to be merged."""
    sample_rows: PositiveInt | None = None
    """Learn from about so many rows, chosen by a hash of their text. Default: from all."""


class PretrainedTokenizer(Section):
    """The tokenizer of a pretrained model."""

    kind: Literal["pretrained"]
    path: str
    """Local folder or Hub repository."""
    revision: str | None = None
    """Commit, tag or branch of the repository."""
    added_tokens: list[str] = []
    """Special tokens that it gets, such as those of a chat template. Embeddings of the model that lack rows for them get new ones;
    with adapters, these embeddings are then trained in full. Where they have spare rows, adapters train only these rows."""


class Tokenization(Section):
    """How text becomes tokens."""

    tokenizer: Annotated[TrainTokenizer | PretrainedTokenizer, Field(discriminator="kind")]
    """Default in a recipe: that of `model.pretrained`."""
    max_length: Annotated[int, Field(ge=2, le=_MAX_INT)] = 512
    """Length of the longest sequence, in tokens. Longer texts are cut; packing fills sequences up to it."""


class ObjectiveChoice(Section, extra="allow"):
    """What the model learns. All other keys are options of the objective; its file documents them."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """Name of a module in trainer/objectives."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the objective, not validated yet."""
        return dict(self.__pydantic_extra__ or {})


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

    The weights of the base model stay fixed; small matrices beside its linear layers learn, and layers that the base model lacks,
    such as a new head. `publish.adapter` says whether the adapters are published merged into the weights or by themselves.
    """

    r: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveInt = 32
    """Scale of the adapters: their output is multiplied by alpha / r."""
    dropout: Fraction = 0.0
    """Dropout probability of the adapters' inputs."""
    target_modules: list[str] | str = "all-linear"
    """Names of the layers that get an adapter. `all-linear`: all linear layers except the head."""
    modules_to_save: list[str] = []
    """Names of further layers that are trained in full, such as `embed_tokens`. A new head always is."""


class Quantization(Section):
    """The base model in 4 or 8 bits while adapters learn (QLoRA, Dettmers et al. 2023, https://arxiv.org/abs/2305.14314).

    Needs `model.lora`, and the extra `quantization`. The adapters are evaluated, and published merged, with the base model's
    unquantized weights.
    """

    bits: Literal[4, 8]
    """Bits per weight: 4 (NF4, a seventh of the memory) or 8 (LLM.int8, a quarter)."""
    double_quant: bool = True
    """With 4 bits: also quantize the quantization constants."""
    compute_dtype: Literal["fp32", "bf16"] = "bf16"
    """With 4 bits: number format of matrix products."""


class Model(Section):
    """The network: a pretrained one, or a new one with random weights. Give either `config` or `pretrained`."""

    config: dict[str, Any] | None = None
    """Arguments of a transformers configuration, including `model_type`. The model starts from random weights."""
    pretrained: str | None = None
    """Local folder or Hub repository to start from. It must hold safetensors; code in it is never run."""
    revision: str | None = None
    """Commit, tag or branch of the repository."""
    published_dtype: Literal["base", "fp32"] = "base"
    """Number format of the weights that are evaluated and published: that of the pretrained model, such as bf16, to which they
    are rounded after training in single precision; or fp32, which is twice as large. Numbers that 16 bits cannot tell apart (regression),
    such as years, are published in fp32 in any case."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights."""
    quantization: Quantization | None = None
    """Keep the pretrained model in 4 or 8 bits while adapters learn."""

    @validate_model(mode="after")
    def _has_one_origin(self) -> Model:
        _require_one(self, "config", "pretrained")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise conflict_error("`config` has no `model_type`", "add one, for example `model_type: llama`")
        return self


class Training(Section):
    """How the model learns. Other fields of transformers.TrainingArguments go under `arguments`."""

    epochs: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Passes over the train split. Give either this or `max_steps`. Default in a recipe: 1 to 4, by the objective."""
    max_steps: PositiveInt | None = None
    """Optimizer steps. Give either this or `epochs`."""
    global_batch_size: PositiveInt
    """Sequences per optimizer step, summed over all processes. Default in a recipe: 16 or 32, by the objective."""
    learning_rate: PositiveFloat
    """Peak learning rate. Default in a recipe: by the objective, for adapters, or by the width of a new model."""
    lr_scheduler: str = "linear"
    """Name of a transformers learning-rate schedule."""
    warmup_steps: NonNegativeFloat = 0
    """Optimizer steps of warm-up. A number below 1 is a share of all steps."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay. Biases and normalization weights are exempt."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradients with a larger norm are scaled down to this norm. 0 turns clipping off."""
    optimizer: str = "adamw_torch_fused"
    """Name of a transformers optimizer. A step of `adamw_torch` takes several times as long as one of `adamw_torch_fused`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward and backward pass. bf16 and fp16: mixed precision."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which takes less memory and more time."""
    group_by_length: bool = False
    """Train on batches of sequences of similar length, which need less padding. Of no use with packing. Default in a recipe:
    what the objective has, but false with `streaming`."""
    streaming: bool = False
    """Read the sequences in windows, from first to last, instead of in random order. For token files on slow disks."""
    eval_steps: Interval = 0.05
    """Optimizer steps between evaluations on the validation split. A number below 1 is a share of all steps. One more
    evaluation runs before the first step."""
    save_steps: Interval = 0.05
    """Optimizer steps between checkpoints. A number below 1 is a share of all steps. An interrupted run resumes from the last
    one."""
    save_minutes: Annotated[float, Field(gt=0.0, le=525_600.0)] | None = None
    """Minutes between checkpoints, if that is more often than every `save_steps`."""
    logging_steps: PositiveInt = 10
    """Optimizer steps between log lines."""
    best_metric: str = "loss"
    """Validation metric that decides which weights are kept and published. The objective's file lists its metrics. Default in a
    recipe: `accuracy`, `f1` or `reward` if the objective has it."""
    early_stopping_patience: PositiveInt | None = None
    """End the training after this many evaluations in a row without a better `best_metric`."""
    loss: CallOrName | None = None
    """Function of (outputs, labels, num_items_in_batch) that replaces the model's own loss. See trainer/losses.py."""
    trainer: Importable | None = None
    """Subclass of transformers.Trainer that overrides compute_loss, create_optimizer, create_scheduler or
    get_train_dataloader. trainer/loop/extensions.py lists all methods that it may override."""
    callbacks: list[CallOrName] = []
    """Subclasses of transformers.TrainerCallback. One with state to resume must also be an ExportableState."""
    keep_checkpoints: PositiveInt = 2
    """Number of checkpoints to keep on disk; older ones are deleted."""
    resume: str = "auto"
    """`auto` resumes from the newest valid checkpoint of the same run, `never` starts at step 0. Otherwise the folder of a
    checkpoint of the same run to resume from."""
    arguments: dict[str, Any] = {}
    """Other fields of transformers.TrainingArguments by name."""

    @validate_model(mode="after")
    def _has_one_length(self) -> Training:
        _require_one(self, "epochs", "max_steps")
        if self.streaming and self.group_by_length:
            what = "`group_by_length` needs the lengths of all sequences, which `streaming` does not read"
            raise conflict_error(what, "set one of them to false")
        return self


class Launch(Section):
    """Where a run happens. These keys do not change what is learned, so they make no stage stale."""

    num_processes: PositiveInt = 1
    """Training processes, summed over all machines."""
    micro_batch_size: PositiveInt
    """Most sequences in one forward pass of a process. The number of accumulation steps follows from the global batch.
    A model with dropout draws different masks if you change it."""
    eval_batch_size: PositiveInt = 32
    """Sequences in one forward pass of an evaluation."""
    dataloader_workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that load batches, per training process."""
    accelerate_config: str | None = None
    """Configuration file of accelerate, for FSDP or DeepSpeed. params/accelerate has examples."""
    num_machines: PositiveInt = 1
    """Machines that train together and share the project's folder. Each but this one runs `evergreen join`."""
    main_process_ip: str | None = None
    """Address of the machine that runs the train stage. The other machines must be able to reach it."""
    main_process_port: Annotated[int, Field(gt=0, le=65_535)] | None = None
    """Free port on that machine; with one machine, a random one is used."""
    out_of_memory_retries: NonNegativeInt = 1
    """How many times to halve the micro-batch when memory runs out. The global batch stays the same."""
    data_workers: Annotated[int, Field(gt=0, le=256)] | None = None
    """Processes that work on shards of the rows at once. Default: one for each CPU. Each needs memory for one shard."""
    data_cluster: Annotated[str, Field(pattern=r"^(tcp|tls|ws|wss)://.+:\d+$")] | None = None
    """Address of the scheduler of a Dask cluster that works on shards instead, for example `tcp://scheduler:8786`. Its machines
    have the same packages, and the project's folder at the same path. Needs the extra `cluster`."""
    stage_timeout_s: Seconds = 3600.0
    """End a stage that makes no progress for this many seconds: no row is read, no batch is scored. A training has
    `stall_timeout_s` as well, an upload `publish.timeout_s`."""
    stall_timeout_s: Seconds = 600.0
    """End the training when a process makes no progress for this many seconds, not even one micro-batch."""
    max_slowdown: Annotated[float, Field(ge=1.0)] | None = 10.0
    """The flow ends a stage that takes so many times as long as the longest of its last ten runs, scaled up to the rows of
    today, and longer than `stage_timeout_s`. null: no such limit. There is none either if recipe or code have changed."""
    max_hours: Annotated[float, Field(gt=0.0, le=8_760.0)] | None = None
    """End the training with a checkpoint when its starts on this machine have taken so many hours together. Nothing is
    published then; with a larger budget, the next run goes on."""
    mirror: Literal["none", "last", "all"] = "none"
    """Upload checkpoints and best weights to the branch `checkpoints` of publish.repo_id during the training, so that
    another machine can continue it with `evergreen fetch`. `last` keeps only the newest checkpoint there, `all` keeps all."""
    grace_s: Seconds = 15.0
    """Seconds to write a last checkpoint when the training is stopped (SIGTERM, Ctrl-C). A Prefect worker kills a flow
    after 30 s."""
    keep_rows_hours: Hours = 168.0
    """How long an interrupted run of the flow keeps its rows, so that it can be finished, although its source may have new
    ones: a database, a branch of a dataset, a function or imported files with `refresh`. After this many hours it is
    given up, and the next run takes the new rows."""
    price_per_hour: NonNegativeFloat | None = None
    """Price of an hour of what a run occupies, all machines together, in a currency of your choice. `evergreen history`
    multiplies it by the hours from the start of the flow to its end, waits for retries included, waits for a free worker
    not. The report multiplies it by the hours of the stages."""

    @validate_model(mode="after")
    def _fits_its_machines(self) -> Launch:
        if self.num_machines > 1 and not (self.main_process_ip and self.main_process_port):
            what = "several machines need `main_process_ip` and `main_process_port`"
            raise conflict_error(what, "add the address and a free port of the machine that runs the train stage")
        if self.num_processes % self.num_machines:
            what = f"{self.num_processes} processes cannot be spread evenly over {self.num_machines} machines"
            raise conflict_error(what, "make `num_processes` a multiple of `num_machines`")
        if self.num_processes > 256 * self.num_machines:
            what = f"{self.num_processes} processes on {self.num_machines} machines are more than 256 on one machine"
            raise conflict_error(what, "use one process per GPU, or per few CPU cores")
        return self


class OwnMetrics(Section):
    """Your own metrics, computed in every evaluation besides those of the objective."""

    function: CallOrName
    """Function of transformers.EvalPrediction that returns a value for each metric in `directions`. It gets the whole
    split; `predictions` are the outputs of `preprocess_logits`."""
    directions: dict[str, Direction]
    """The names of the metrics, and whether the smallest (`min`) or the largest (`max`) value is best."""
    preprocess_logits: CallOrName | None = None
    """Function of (logits, labels) that reduces the logits of a batch, which saves memory. Default: argmax."""


class SliceBy(Section):
    """A way to divide the evaluated rows into slices, each with metrics of its own."""

    column: str | None = None
    """Column with the name of each row's slice. Give either this or `function`."""
    function: CallOrName | None = None
    """Function of a row (a mapping of column to value) that returns the name of its slice. Needs `name`."""
    name: str | None = None
    """Title of the slices in reports. Default: the column."""

    @validate_model(mode="after")
    def _has_one_way(self) -> SliceBy:
        _require_one(self, "column", "function")
        if self.function is not None and self.name is None:
            raise conflict_error("a `function` needs a `name`", "add `name:`, the title of the slices in reports")
        return self

    @property
    def title(self) -> str:
        """Title of the slices in reports."""
        return str(self.name or self.column)


class Gate(Section):
    """What a model must achieve to be published. docs/gate.md says how often the decision is wrong."""

    metric: str | None = None
    """Metric that is compared with the champion's. It must be comparable across tokenizers. Default: the objective's
    `main_metric`."""
    gain: NonNegativeFloat | None = None
    """Smallest improvement over the champion, in units of the metric: the confidence interval of the improvement must lie
    above it. Default: 0, unless you give `margin`."""
    margin: PositiveFloat | None = None
    """Largest deterioration from the champion, in units of the metric: the confidence interval of the improvement must
    lie above minus this. Give either this or `gain`."""
    floors: dict[str, float] = {}
    """Metrics and the values that a model must reach, whatever the champion's are. For a metric whose smallest value is
    best, the value that it must not exceed."""
    slice_floors: dict[str, float] = {}
    """The same for every slice of at least `min_slice_rows` rows. A model is refused if a slice misses its value by more
    than chance explains."""
    label_floors: dict[Literal["precision", "recall", "f1"], float | dict[str, float]] = {}
    """Precision, recall or F1 that each label of a classifier must reach, or some by name: `{recall: {threat: 0.9}}`. A model is refused
    if a label misses its value by more than chance explains."""
    slice_margin: PositiveFloat | None = None
    """Largest deterioration of `metric` on any slice, or of what slices have in place of it (docs/gate.md). The champion stays
    if a slice deteriorates by more than that, and by more than chance explains."""
    min_slice_rows: PositiveInt = 30
    """Slices with fewer rows are shown but not judged."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Confidence level of all intervals and tests. Tests of slices are corrected for their number (Holm 1979)."""
    over: Literal["release", "test_rows"] = "release"
    """What `confidence` holds for: each comparison, or all comparisons on the same held-out rows together."""
    comparisons: Annotated[int, Field(gt=0, le=1000)] | None = None
    """How many comparisons the held-out rows are meant for, with `over: test_rows`: each has an equal part of the error.
    Default: 12."""
    resamples: Annotated[int, Field(ge=200, le=100_000)] = 2000
    """Bootstrap resamples per interval."""

    @validate_model(mode="after")
    def _has_one_threshold(self) -> Gate:
        if self.gain is not None and self.margin is not None:
            what = "`gain` (must be better) and `margin` (may be worse) exclude each other"
            raise conflict_error(what, "remove one of them")
        if self.comparisons is not None and self.over == "release":
            what = "`comparisons` has no effect without `over: test_rows`"
            raise conflict_error(what, "add `over: test_rows`, or remove it")
        return self

    @property
    def planned_comparisons(self) -> int:
        """How many comparisons share the error of `confidence`."""
        return 1 if self.over == "release" else self.comparisons or 12

    @property
    def comparison_confidence(self) -> float:
        """Confidence of one comparison and of the intervals; tests of slices only protect the champion and keep theirs."""
        return self.confidence if self.over == "release" else 1 - (1 - self.confidence) / self.planned_comparisons

    @property
    def bar(self) -> float:
        """Value that the lower end of the improvement's confidence interval must exceed."""
        return -self.margin if self.margin is not None else self.gain or 0.0


class Suite(Section):
    """Rows that a model must get right to be published, besides the test split. They have the columns of the objective."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    """Name in the report, and of the folder of its rows."""
    source: Annotated[
        RowsFromFiles | RowsFromHubDataset,
        Field(discriminator="kind"),
        AfterValidator(_require_fixed),
        _files_from_text,
    ]
    """Path or glob of its rows, or the keys of a source of kind `files` or `hub`, of one commit, with `train` alone."""
    must: Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(lambda own: 1.0 if own == "all" else own)] = 1.0
    """The smallest share of the rows that the model must get right; `all` is 1."""
    matches: str | None = None
    """Column with a regular expression that is to be found in the text that the model generates for the row. Default: the
    objective says which rows are right; a generated text is, if it equals that of the row except for white space around it."""
    function: CallOrName | None = None
    """Function of a row and of the text that the model generates for it, which returns whether that is right."""
    max_new_tokens: PositiveInt | None = None
    """Longest generated text in tokens. Default: that of the call on the model card."""

    @validate_model(mode="after")
    def _has_one_way(self) -> Suite:
        if self.matches and self.function:
            raise conflict_error("`matches` and `function` both say what is right", "remove one of them")
        return self


class Evaluation(Section):
    """How the trained model is evaluated, and what it must achieve."""

    metrics: OwnMetrics | None = None
    """Your own metrics; `training.best_metric` may name one."""
    split: Literal["test", "validation"] = "test"
    """Split that the model is evaluated on."""
    compare_untrained: bool = True
    """Also evaluate the model as it was before training. The first release must be better than that."""
    slices: list[Annotated[SliceBy, _from_text("column")]] = []
    """Slices to evaluate: names of columns, or `{name: ..., function: package.module:name}`."""
    worst_rows: NonNegativeInt = 20
    """Number of rows with the worst predictions to list."""
    suites: list[Suite] = []
    """Rows that the model must get right to be published, by name: `{name: greetings, source: data/greetings.csv, must: all}`."""
    gate: Gate = Gate()
    """What the model must achieve to be published."""

    @validate_model(mode="after")
    def _has_names_once(self) -> Evaluation:
        names = [suite.name.lower() for suite in self.suites]
        if twice := [name for name in names if names.count(name) > 1]:
            raise conflict_error(f"two suites are called {twice[0]}", "give each a name of its own")
        return self


AdapterForm = Literal["merged", "adapter", "both"]


class Publish(Section):
    """Where to publish the model."""

    repo_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$"), AfterValidator(_check_repo_id)]
    """Repository, as `owner/name`."""
    endpoint: str = "local"
    """URL of the Hub, or `local` for the Hub in the folder .hub. If HF_ENDPOINT is set, it replaces `local`."""
    adapter: AdapterForm = "merged"
    """With `model.lora`, what a release holds: `merged`, a whole model with the adapters in its weights; `adapter`, the adapters only,
    which PEFT loads on their base model from the Hub; `both`, the whole model, and the adapters in the folder `adapter`."""
    private: bool = True
    """Create the repository as a private one. An existing repository stays as it is."""
    license: str = "other"
    """License of the model, as an identifier of the Hub, for the model card."""
    approval: Literal["none", "pull_request"] = "none"
    """`pull_request`: propose a release as a pull request of the repository. Merging it publishes the model, closing it
    rejects the model. No run waits for it."""
    dry_run: bool = False
    """Prepare the release, but do not upload it."""
    timeout_s: Seconds = 3600.0
    """Seconds after which publishing stops, even in the middle of an upload. The next run publishes again."""


class Recipe(Section):
    """A complete run."""

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 17
    """Seed of all random numbers: splits, initial weights, order of the rows, dropout."""
    data: Data
    validation: Validation = Validation()
    tokenization: Tokenization
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    evaluation: Evaluation = Evaluation()
    publish: Publish
