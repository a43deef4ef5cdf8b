"""The keys of a recipe: one frozen pydantic model per section, one docstring per key. Some sections are in params/sections.

Keys without a default here get one from tasks/recipes/defaults.py, which depends on the objective and the model. No DVC stage declares
`launch`: it says where a run happens (processes, micro-batch, workers), not what is learned.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat
from pydantic import model_validator as validate_model

from params.sections.base import (
    CallOrName,
    Fraction,
    Hours,
    Importable,
    Interval,
    NonNegativeInt,
    PositiveInt,
    Seconds,
    Section,
    check_repo_id,
    conflict_error,
    require_one,
)
from params.sections.data import Data
from params.sections.evaluation import Evaluation
from params.sections.rows import Tokenization, Validation


class ObjectiveChoice(Section, extra="allow"):
    """What the model learns. All other keys are options of the objective; its file documents them."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    """Name of a module in trainer/objectives, or of what an installed package brings as an objective."""

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


Start = Literal["base", "champion", "best"]


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
    start: Start = "base"
    """Which weights the training starts from: those of `pretrained` or `config`; or those of the published model, if there is one. `best`
    trains from both, one after the other, and keeps what is better by `training.best_metric`. docs/continual.md says more."""

    @validate_model(mode="after")
    def _has_one_origin(self) -> Model:
        require_one(self, "config", "pretrained")
        if self.config is not None and not isinstance(self.config.get("model_type"), str):
            raise conflict_error("`config` has no `model_type`", "add one, for example `model_type: llama`")
        return self


class Replay(Section):
    """Known and new rows in each global batch, by the published model that the training starts from: did it learn from them?"""

    known: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of known rows. An epoch goes once through the new rows, and draws as many known ones as it takes."""


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
    replay: Replay | None = None
    """How many rows of each global batch are ones that the published model has learned from. Needs `model.start`. Default: the rows are
    drawn alike, whether or not they are new."""
    stay_close: PositiveFloat | None = None
    """Pull the weights back to those that the training starts from, which a model with another task or new rows forgets otherwise: half of
    this number times the squared distance is added to the loss. Weights that are new are free. (L2-SP, Li et al. 2018,
    https://arxiv.org/abs/1802.01483, which tries 0.001 to 1.)"""
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
        require_one(self, "epochs", "max_steps")
        if self.streaming and self.group_by_length:
            what = "`group_by_length` needs the lengths of all sequences, which `streaming` does not read"
            raise conflict_error(what, "set one of them to false")
        if self.streaming and self.replay:
            raise conflict_error(
                "`replay` draws rows by number, and `streaming` reads them in order", "remove one of them"
            )
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


AdapterForm = Literal["merged", "adapter", "both"]


class Publish(Section):
    """Where to publish the model."""

    repo_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$"), AfterValidator(check_repo_id)]
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
