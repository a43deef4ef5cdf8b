"""What a training starts from: the model and its tokenizer, pretrained or new, as sections of the recipe and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from params import RecipeError
from params.schema import Lora, Model, PretrainedTokenizer, Tokenization, TrainTokenizer
from tasks.scaffold import choices
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import Proposal
from trainer.objectives.bases.advice import Choice, ModelKind
from trainer.objectives.bases.objective import Objective, ObjectiveState

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SEED: Final = 17
_NEW_MODELS: Final[Mapping[ModelKind, Mapping[str, Any]]] = {
    "decoder": {
        "model_type": "llama",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "encoder": {
        "model_type": "bert",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
    },
    "encoder-decoder": {"model_type": "t5", "d_model": 192, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 6},
}


def tokenizer_choice(facts: ModelFacts | None, characters: int) -> Choice:
    """Return the tokenizer's section: the pretrained model's own, or one that is trained on the rows."""
    if facts:
        own = PretrainedTokenizer(kind="pretrained", path=facts.path, revision=facts.revision)
        return Choice(own, "the model's own")
    size = choices.vocabulary(characters)
    return Choice(TrainTokenizer(kind="train", vocab_size=size.value), size.why)


def load_tokenizer(
    choice: PretrainedTokenizer | TrainTokenizer, texts: Sequence[str], objective: Objective[Any]
) -> PreTrainedTokenizerBase:
    """Return the tokenizer as the tokenize stage makes it, from `texts` if it is trained, and without a limit of length."""
    from tasks.tokenization.tokenizers import NO_LIMIT, build_tokenizer

    tokenizer = build_tokenizer(Tokenization(tokenizer=choice, max_length=NO_LIMIT), texts)
    objective.prepare_tokenizer(tokenizer)
    return tokenizer


def model_choice(proposal: Proposal, facts: ModelFacts | None) -> tuple[Model, Choice]:
    """Return the model's section, and whether only adapters are trained."""
    if facts:
        lora = choices.lora(facts.parameters, _memory_bytes())
        adapters = Lora() if lora.value else None
        return Model(pretrained=facts.path, revision=facts.revision, lora=adapters), lora
    if proposal.advice.needs_pretrained:
        fix = "give one that can already answer, for example the folder runs/NAME/model of another recipe"
        raise RecipeError("--model", f"{proposal.objective} needs a model to start from", fix)
    return Model(config=dict(_NEW_MODELS[proposal.advice.models[0]])), Choice(value=False)


def can_train(
    model: Model, objective: Objective[Any], state: ObjectiveState, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Whether the objective can train the model, with its options: not all models keep packed examples apart."""
    import transformers

    from trainer.model.network import initial_model

    transformers.logging.set_verbosity_error()  # that a head is new is no news
    transformers.logging.disable_progress_bar()
    network = initial_model(model, objective=objective, state=state, tokenizer=tokenizer, seed=SEED)
    try:
        objective.check_model(network)
    except RecipeError:
        return False
    return True


def precision() -> Choice:
    """Return the number format of the passes."""
    import torch

    if has_gpu() and torch.cuda.is_bf16_supported():
        return Choice("bf16", "on a GPU about twice as fast as fp32")
    without = "there is no GPU here: on one that has it, bf16 is about twice as fast"
    return Choice("fp32", "the GPU here has no bf16" if has_gpu() else without)


def has_gpu() -> bool:
    """Whether this machine trains on a GPU."""
    import torch

    return bool(torch.cuda.is_available())


def _memory_bytes() -> float:
    import psutil
    import torch

    if has_gpu():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(psutil.virtual_memory().total)
