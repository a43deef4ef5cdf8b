"""What a training starts from: the model and its tokenizer, pretrained or new, as sections of the recipe and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from params import RecipeError
from params.schema import Lora, Model, PretrainedTokenizer, Tokenization, TrainTokenizer
from tasks.scaffold import choices
from tasks.scaffold.choices import Choice
from tasks.scaffold.measure import has_gpu
from tasks.scaffold.model_facts import ModelFacts
from tasks.scaffold.proposal import Proposal
from trainer.objectives.bases.objective import Objective, ObjectiveState

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SEED: Final = 17
_DECODER: Final = {
    "model_type": "llama",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_ENCODER: Final = {
    "model_type": "bert",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
_ENCODER_DECODER: Final = {"model_type": "t5", "d_model": 192, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 6}


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
    if proposal.objective == "dpo":
        fix = "give a model that can already answer, for example the folder runs/NAME/model of an sft recipe"
        raise RecipeError("--model", "preferences need a model to start from", fix)
    configs = {"sequence_classification": _ENCODER, "token_classification": _ENCODER, "seq2seq": _ENCODER_DECODER}
    return Model(config=dict(configs.get(proposal.objective, _DECODER))), Choice(value=False)


def load_network(
    model: Model, objective: Objective[Any], state: ObjectiveState, tokenizer: PreTrainedTokenizerBase
) -> Any:
    """Return the model as training starts with it."""
    import transformers

    from trainer.model.network import initial_model

    transformers.logging.set_verbosity_error()  # that a head is new is no news
    transformers.logging.disable_progress_bar()
    return initial_model(model, objective=objective, state=state, tokenizer=tokenizer, seed=SEED)


def can_pack(objective: Objective[Any], network: PreTrainedModel) -> bool:
    """Whether the model keeps packed examples apart."""
    try:
        objective.check_model(network)
    except RecipeError:
        return False
    return True


def _memory_bytes() -> float:
    import psutil
    import torch

    if has_gpu():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(psutil.virtual_memory().total)
