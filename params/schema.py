"""What a recipe may say: one frozen pydantic model per section, one docstring per field.

A recipe names all ten sections, because each DVC stage declares the sections that it reads. `launch` is the one that
no stage declares: it says where a run happens (processes, micro-batch, workers), never what is learned.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from pydantic import model_validator as validate_model

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
IMPORTABLE = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
Importable = Annotated[str, Field(pattern=IMPORTABLE)]
"""A Python object, as `package.module:name`."""


Direction = Literal["min", "max"]
"""Whether the smallest or the largest value of a metric is best."""


class Section(BaseModel):
    """A part of a recipe: frozen, and strict about unknown keys and types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Call(Section):
    """A Python function or class, and what it is called with."""

    name: Importable
    """`package.module:name`."""
    arguments: dict[str, Any] = {}
    """Keyword arguments that the recipe gives it, beside those that the pipeline gives."""


def _called(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Named = Annotated[Call, BeforeValidator(_called)]
"""`package.module:name`, or `{name: package.module:name, arguments: {...}}`."""


class Files(Section):
    """Rows from files on this machine. The format follows from the suffix: .csv, .jsonl, .json (lines), .parquet, .txt."""

    kind: Literal["files"]
    train: str
    """Path or glob, relative to the project's root. With neither `validation` nor `test`, `data.split` makes them."""
    validation: str | None = None
    """Path or glob of the rows that choose the best checkpoint."""
    test: str | None = None
    """Path or glob of the held-out rows that the published figures are computed on."""
    text_unit: Literal["line", "paragraph", "file"] = "paragraph"
    """What one row of a .txt file is; paragraphs are separated by blank lines."""


class HubDataset(Section):
    """Rows from a dataset repository on a Hub, at one commit."""

    kind: Literal["hub"]
    repo_id: str
    """Repository, as `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """Full commit hash: a branch or tag can move, and the run could not be repeated."""
    train: str
    """Path or glob inside the repository, for example `data/train-*.parquet`."""
    validation: str | None = None
    """Path or glob inside the repository."""
    test: str | None = None
    """Path or glob inside the repository."""
    endpoint: str | None = None
    """Hub address; by default the one that huggingface_hub uses."""


class Sql(Section):
    """Rows from a query. The flow asks again at every run, since DVC cannot watch a database."""

    kind: Literal["sql"]
    url: str
    """SQLAlchemy URL; `${NAME}` is replaced by that environment variable, so that no password stands in a recipe."""
    query: str
    """The statement whose result is the rows. Order it by a key: the order of the rows is the order of training."""


class Function(Section):
    """Rows that a Python function yields."""

    kind: Literal["function"]
    function: Importable
    """`package.module:name` of a function that yields one dict per row."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the function."""
    refresh: bool = False
    """Call the function at every flow run, even when no file that DVC watches has changed."""


class Split(Section):
    """How rows without a split of their own are divided, by a hash of their content: a row keeps its split for ever."""

    validation: Fraction = 0.05
    """Share of the rows (of the training rows, when there is a test file) that choose the best checkpoint."""
    test: Fraction = 0.05
    """Share of the rows held out for evaluation; unused when the source has a test file."""
    by: list[str] = []
    """Columns whose values decide the split; rows equal in them stay together. By default the whole row."""


class Data(Section):
    """Where the rows come from, and how they are divided."""

    source: Annotated[Files | HubDataset | Sql | Function, Field(discriminator="kind")]
    split: Split = Split()


class Expectation(BaseModel):
    """One Great Expectations check. Keys beside these are the expectation's own arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    type: str
    """Snake-case name, for example `expect_column_value_lengths_to_be_between`."""
    on_failure: Literal["quarantine", "fail", "report"] = "quarantine"
    """`quarantine` sets the failing rows aside, `fail` ends the stage at the first one, `report` only shows them."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The expectation's own arguments."""
        return dict(self.__pydantic_extra__ or {})


class Validation(Section):
    """Checks beside those that the objective demands."""

    expectations: list[Expectation] = []
    max_quarantined: Fraction = 0.01
    """Largest share of rows that may be set aside; beyond it the stage fails."""


class TrainTokenizer(Section):
    """A byte-level BPE tokenizer, trained on the train split."""

    kind: Literal["train"]
    vocab_size: Annotated[int, Field(ge=260)]
    """Number of tokens, the 256 bytes and the special tokens included."""
    min_frequency: PositiveInt = 2
    """How often a pair must occur to be merged."""


class PretrainedTokenizer(Section):
    """The tokenizer that belongs to a pretrained model."""

    kind: Literal["pretrained"]
    path: str
    """Local folder or Hub repository."""
    revision: str | None = None
    """Commit, tag or branch of the repository."""


class Tokenization(Section):
    """How text becomes tokens."""

    tokenizer: Annotated[TrainTokenizer | PretrainedTokenizer, Field(discriminator="kind")]
    max_length: Annotated[int, Field(ge=2)]
    """Longest sequence, in tokens."""


class ObjectiveChoice(BaseModel):
    """What is learned. Keys beside `name` are the objective's own options, typed in its file."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """A module of trainer/objectives."""

    @property
    def options(self) -> dict[str, Any]:
        """The objective's own options, not yet checked."""
        return dict(self.__pydantic_extra__ or {})


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

    The base model stays as it is, small matrices beside its linear layers learn. What is published is the model with the
    adapters merged into it.
    """

    r: PositiveInt = 16
    """Rank of the matrices."""
    alpha: PositiveInt = 32
    """The update is scaled by alpha / r."""
    dropout: Fraction = 0.0
    """Share of the adapters' inputs that is dropped in training."""
    target_modules: list[str] | str = "all-linear"
    """Names of the layers that get one; `all-linear` is every linear layer but the head."""


class Quantization(Section):
    """The base model in few bits, while adapters learn (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314).

    Needs `lora` and the extra `quantization`. What is published are the adapters, merged into the base model in full.
    """

    bits: Literal[4, 8]
    """Of a weight: 4 (NF4), a seventh of the memory, or 8 (LLM.int8), a quarter."""
    double: bool = True
    """With 4 bits, quantize the scales of the weights, too."""
    compute: Literal["fp32", "bf16"] = "bf16"
    """With 4 bits, the number format that weights are multiplied in."""


class Model(Section):
    """The network: built from a configuration, or loaded."""

    config: dict[str, Any] | None = None
    """Arguments of a transformers configuration, `model_type` among them: the model starts from random weights."""
    pretrained: str | None = None
    """Local folder or Hub repository to start from. Safetensors only; code in the repository is never run."""
    revision: str | None = None
    """Commit, tag or branch of the repository."""
    lora: Lora | None = None
    """Train low-rank adapters instead of all weights."""
    quantization: Quantization | None = None
    """Keep the pretrained model in 4 or 8 bits while adapters learn."""

    @validate_model(mode="after")
    def _exactly_one_origin(self) -> Model:
        if (self.config is None) == (self.pretrained is None):
            raise ValueError("give either `config` (random weights) or `pretrained` (a folder or repository)")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise ValueError("`config` needs a `model_type`, for example llama or bert")
        return self


class Training(Section):
    """How the model learns. Any other field of transformers.TrainingArguments goes under `arguments`."""

    epochs: PositiveFloat | None = None
    """Passes over the train split. Give this or `max_steps`."""
    max_steps: PositiveInt | None = None
    """Optimizer steps. Give this or `epochs`."""
    global_batch_size: PositiveInt
    """Sequences per optimizer step, over all processes."""
    learning_rate: PositiveFloat
    """Peak learning rate."""
    lr_scheduler: str = "linear"
    """Name of a transformers learning-rate schedule."""
    warmup_steps: NonNegativeFloat = 0
    """Optimizer steps of warm-up; a number below 1 is a share of all steps."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay; not applied to biases and normalisation weights."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm above which gradients are scaled down; 0 turns it off."""
    optimizer: str = "adamw_torch"
    """Name of a transformers optimizer."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward and backward pass."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    group_by_length: bool = False
    """Train on batches of like length: less padding where sequences are not packed. The order stays exact."""
    streaming: bool = False
    """Read the sequences front to back, window by window, instead of at random: for token files on slow disks."""
    eval_steps: PositiveInt
    """Optimizer steps between evaluations on the validation split; one more runs before the first step."""
    save_steps: PositiveInt
    """Optimizer steps between checkpoints from which an interrupted run goes on."""
    save_minutes: PositiveFloat | None = None
    """Minutes after which a checkpoint is due although `save_steps` are not over."""
    logging_steps: PositiveInt = 10
    """Optimizer steps between log lines."""
    best_metric: str = "loss"
    """Validation metric whose best evaluation is kept and published; the objective says which there are."""
    early_stopping_patience: PositiveInt | None = None
    """Evaluations in a row without a better `best_metric` after which training ends."""
    loss: Named | None = None
    """A function of (outputs, labels, num_items_in_batch) in place of the model's own loss; trainer.losses has some."""
    trainer: Importable | None = None
    """A subclass of transformers.Trainer that overrides compute_loss, create_optimizer, create_scheduler or
    get_train_dataloader; trainer.loop.extensions says what it may not."""
    callbacks: list[Named] = []
    """Subclasses of transformers.TrainerCallback. One that must survive a resume is an ExportableState, too."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """How many of the newest checkpoints stay on disk."""
    resume: str = "auto"
    """`auto` goes on from the newest verified checkpoint of the same run, `never` starts at step 0, anything else is the
    folder of one checkpoint of the same run to go on from."""
    arguments: dict[str, Any] = {}
    """Other fields of transformers.TrainingArguments, by their own names."""

    @validate_model(mode="after")
    def _exactly_one_length(self) -> Training:
        if (self.epochs is None) == (self.max_steps is None):
            raise ValueError("give either `epochs` or `max_steps`")
        if self.streaming and self.group_by_length:
            raise ValueError("`group_by_length` needs all lengths at once: use either it or `streaming`")
        return self


class Launch(Section):
    """Where a run happens. Nothing here changes what is learned, so nothing here makes a stage stale."""

    num_processes: PositiveInt = 1
    """Processes that accelerate starts, over all machines."""
    micro_batch_size: PositiveInt
    """Most sequences in one forward pass of one process; accumulation steps follow from the global batch. A model with
    dropout draws other masks for another micro-batch."""
    eval_batch_size: PositiveInt = 32
    """Sequences in one forward pass of evaluation."""
    dataloader_workers: NonNegativeInt = 0
    """Processes that load batches, for each training process."""
    accelerate_config: str | None = None
    """Accelerate configuration file, for example of params/accelerate: FSDP, DeepSpeed."""
    num_machines: PositiveInt = 1
    """Machines that train together, on one shared folder: this one, and those on which `evergreen join` runs."""
    main_process_ip: str | None = None
    """Address of the machine that runs the train stage, as the others see it."""
    main_process_port: PositiveInt | None = None
    """Free port on that machine."""
    out_of_memory_retries: NonNegativeInt = 1
    """How often the micro-batch is halved, at the same global batch, when memory does not suffice."""
    stall_timeout_s: PositiveFloat = 600.0
    """Seconds without any progress of a process, be it one micro-batch, after which the training is ended."""
    mirror: Literal["none", "last", "all"] = "none"
    """Copy each checkpoint, and the best weights, to the branch `checkpoints` of publish.repo_id while the model trains, so
    that another machine can go on (`evergreen fetch`). `last` replaces the one before, `all` keeps each."""
    grace_s: PositiveFloat = 15.0
    """Seconds between the request to stop (SIGTERM, Ctrl-C) and the end, in which a checkpoint is written. A Prefect worker
    gives a flow 30 s in all."""

    @validate_model(mode="after")
    def _machines_meet(self) -> Launch:
        if self.num_machines > 1 and not (self.main_process_ip and self.main_process_port):
            raise ValueError("several machines need `main_process_ip` and `main_process_port` to meet at")
        if self.num_processes % self.num_machines:
            raise ValueError(f"{self.num_processes} processes are not the same number on {self.num_machines} machines")
        return self


class Metrics(Section):
    """Figures of one's own, beside those of the objective, at every evaluation."""

    function: Named
    """A function of transformers.EvalPrediction that returns a figure for each of `directions`. It sees the whole split
    at once: `predictions` are what is left of the logits after `preprocess_logits`."""
    directions: dict[str, Direction]
    """The names of the figures, and whether the smallest or the largest is best."""
    preprocess_logits: Named | None = None
    """A function of (logits, labels) that reduces a batch of logits before anything is kept; by default argmax."""


class Slice(Section):
    """A way to divide the rows of the split; each part gets figures of its own."""

    column: str | None = None
    """The column whose values divide the rows."""
    function: Named | None = None
    """A function of a row (a mapping of column to value) that returns the name of its part. Needs `name`."""
    name: str | None = None
    """What the division is called; a column's own name by default."""

    @validate_model(mode="after")
    def _exactly_one_way(self) -> Slice:
        if (self.column is None) == (self.function is None):
            raise ValueError("give either `column` or `function`")
        if self.function is not None and self.name is None:
            raise ValueError("a `function` needs a `name`")
        return self

    @property
    def title(self) -> str:
        """What the division is called."""
        return str(self.name or self.column)


class Gate(Section):
    """What a model must show to be published. docs/gate.md says how often this errs."""

    metric: str | None = None
    """The metric that decides; by default the objective's `main_metric`. It must compare across tokenizers."""
    gain: NonNegativeFloat | None = None
    """Published if the lower end of the gain's interval over the champion is above this; 0 unless `margin` is given."""
    margin: PositiveFloat | None = None
    """Published if the lower end of the gain's interval is above minus this: not worse by more than the margin."""
    floors: dict[str, float] = {}
    """Figures that a model must reach whatever the champion does; of those whose smallest is best, must not exceed."""
    slice_floors: dict[str, float] = {}
    """The same of every slice with at least `slice_rows` rows; refused when one is below by more than chance explains."""
    slice_margin: PositiveFloat | None = None
    """Most that `metric` may fall on any slice; the champion is kept when one falls by more, beyond chance."""
    slice_rows: PositiveInt = 30
    """Rows below which a slice is shown and not judged."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Of all intervals; tests of slices, corrected for their number (Holm 1979), use the same."""
    resamples: Annotated[int, Field(ge=200)] = 2000
    """Bootstrap resamples."""

    @validate_model(mode="after")
    def _one_bar(self) -> Gate:
        if self.gain is not None and self.margin is not None:
            raise ValueError("give either `gain` (better by so much) or `margin` (not worse by more)")
        return self

    @property
    def bar(self) -> float:
        """What the lower end of the gain's interval must be above."""
        return -self.margin if self.margin is not None else self.gain or 0.0


def _sliced(value: Any) -> Any:
    return {"column": value} if isinstance(value, str) else value


class Evaluation(Section):
    """What is computed on the held-out split."""

    metrics: Metrics | None = None
    """Own figures, for `training.best_metric` too. Written as `null` where there are none, so that DVC can watch it."""

    split: Literal["test", "validation"] = "test"
    """The split that figures are computed on."""
    compare_untrained: bool = True
    """Also score the model as it was before training, on the same rows. The first release must be better than it."""
    slices: list[Annotated[Slice, BeforeValidator(_sliced)]] = []
    """Divisions of the rows: a column's name, or `{name: ..., function: package.module:name}`."""
    worst: NonNegativeInt = 20
    """How many of the rows that the model does worst on are listed."""
    gate: Gate = Gate()
    """What the model must show to be published."""


class Publish(Section):
    """Where the model goes."""

    repo_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
    """Repository, as `owner/name`."""
    endpoint: str = "local"
    """`local` for the Hub in the folder .hub, or a Hub's address. The variable HF_ENDPOINT, when set, wins over `local`."""
    private: bool = True
    """Whether a repository that publishing creates is private."""
    license: str = "other"
    """Licence identifier for the model card, as the Hub spells it."""
    dry_run: bool = False
    """Do everything but the commit."""
    timeout_s: PositiveFloat = 3600.0
    """Seconds after which publishing ends, an upload under way included; the next run publishes."""


class Recipe(Section):
    """One complete run."""

    seed: NonNegativeInt
    """Source of all randomness: split, weights, order of the rows, dropout."""
    data: Data
    validation: Validation
    tokenization: Tokenization
    objective: ObjectiveChoice
    model: Model
    training: Training
    launch: Launch
    evaluation: Evaluation
    publish: Publish
