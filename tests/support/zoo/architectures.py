"""Tiny models with random weights of the architectures of the Hub's most downloaded text models, each with the quirks of the real one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.support.zoo import tokenizers_of_kinds

_ENCODER: Final = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_DECODER: Final = {**_ENCODER, "num_key_value_heads": 1, "head_dim": 16}
_GPT: Final = {"n_embd": 32, "n_layer": 2, "n_head": 2}
_EXPERTS: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_BART: Final = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_T5: Final = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
_SHORT: Final = {"max_position_embeddings": 66}
"""Few positions, so that a limit shows."""


@dataclass(frozen=True)
class Architecture:
    """A type of models."""

    name: str
    """The `model_type` of transformers."""
    like: str
    """A model of the Hub that is one."""
    kind: Literal["encoder", "decoder", "encoder-decoder"]
    tokenizer: str
    """One of `tokenizers_of_kinds.KINDS`."""
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    generation: dict[str, Any] = field(default_factory=dict)
    """What its generation_config.json says."""
    quirk: str = ""
    """What is special about it."""
    lora: dict[str, Any] = field(default_factory=dict)
    """What its adapters need."""

    def write(self, folder: Path, *, encoder_class: str = "AutoModel") -> Path:
        """Write the model and its tokenizer; return the folder."""
        import torch
        import transformers

        tokenizer = tokenizers_of_kinds.KINDS[self.tokenizer]()
        ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        start = {"decoder_start_token_id": ids["pad_token_id"]} if self.kind == "encoder-decoder" else {}
        settings = {"vocab_size": len(tokenizer), **ids, **start, **self.config}
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(self.name, **settings)
        if "use_cache" in config.to_dict():
            config.use_cache = True
        classes = {
            "encoder": encoder_class,
            "decoder": "AutoModelForCausalLM",
            "encoder-decoder": "AutoModelForSeq2SeqLM",
        }
        network = getattr(transformers, classes[self.kind]).from_config(config)
        network.to(getattr(torch, self.dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        path = folder / "generation_config.json"
        if self.generation:
            known = json.loads(path.read_bytes()) if path.exists() else {}
            path.write_text(json.dumps({**known, **self.generation}))
        return folder


def _encoder(name: str, like: str, tokenizer: str, quirk: str = "", **config: Any) -> Architecture:
    return Architecture(name, like, "encoder", tokenizer, {**_ENCODER, **_SHORT, **config}, quirk=quirk)


def _decoder(name: str, like: str, tokenizer: str, quirk: str = "", **config: Any) -> Architecture:
    dtype, generation = config.pop("dtype", "float32"), config.pop("generation", {})
    return Architecture(name, like, "decoder", tokenizer, {**_DECODER, **config}, dtype, generation, quirk)


def _other(name: str, like: str, kind: Any, tokenizer: str, quirk: str = "", **config: Any) -> Architecture:
    return Architecture(name, like, kind, tokenizer, config, quirk=quirk, lora=config.pop("lora", {}))


_SAMPLES: Final = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
_FOUND = (
    _encoder("bert", "google-bert/bert-base-uncased", "wordpiece"),
    _encoder("roberta", "FacebookAI/roberta-base", "roberta", "positions begin at 2"),
    _encoder("xlm-roberta", "FacebookAI/xlm-roberta-base", "xlm_roberta", "SentencePiece, positions begin at 2"),
    _other(
        *("distilbert", "distilbert/distilbert-base-uncased", "encoder", "wordpiece_without_types", "no token types"),
        **{"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, **_SHORT},
    ),
    _encoder("albert", "albert/albert-base-v2", "wordpiece", "layers share weights", embedding_size=16),
    _encoder("electra", "google/electra-small-discriminator", "wordpiece", "narrow embeddings", embedding_size=16),
    _encoder(
        *("deberta-v2", "microsoft/deberta-v3-base", "wordpiece", "relative positions only"),
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["c2p", "p2c"],
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pooler_hidden_size=32,
    ),
    _encoder("deberta", "microsoft/deberta-base", "roberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("mpnet", "microsoft/mpnet-base", "wordpiece_without_types", "positions begin behind padding"),
    _encoder("camembert", "almanach/camembert-base", "xlm_roberta", "positions begin at 2"),
    _encoder("longformer", "allenai/longformer-base-4096", "roberta", "sliding window", attention_window=[8, 8]),
    _encoder(
        *("modernbert", "answerdotai/ModernBERT-base", "wordpiece_without_types", "local and global layers, rotary"),
        local_attention=8,
        global_attn_every_n_layers=2,
    ),
    _encoder("convbert", "YituTech/conv-bert-base", "wordpiece", "convolutions", embedding_size=32, head_ratio=1),
    _encoder("ernie", "nghuyong/ernie-2.0-base-en", "wordpiece"),
    _encoder("roformer", "junnyu/roformer_chinese_base", "wordpiece", "rotary", embedding_size=32),
    _encoder(
        "nystromformer",
        "uw-madison/nystromformer-512",
        "wordpiece",
        "landmarks",
        num_landmarks=64,
        segment_means_seq_len=64,
    ),
    _encoder(
        "mobilebert",
        "google/mobilebert-uncased",
        "wordpiece",
        "bottlenecks",
        intra_bottleneck_size=16,
        embedding_size=16,
    ),
    _other(
        *("xlnet", "xlnet/xlnet-base-cased", "encoder", "xlnet", "pads left, the head reads the end, relative"),
        d_model=32,
        n_layer=2,
        n_head=2,
        d_inner=64,
    ),
    _other("gpt2", "openai-community/gpt2", "decoder", "gpt2", "no pad, tied, Conv1D", **_GPT, n_positions=130),
    _other(
        *("gpt_neo", "EleutherAI/gpt-neo-125m", "decoder", "gpt2", "local and global attention"),
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=130,
        window_size=8,
    ),
    _decoder("gpt_neox", "EleutherAI/pythia-160m", "gpt2", "untied, half rotary", dtype="float16"),
    _other("gptj", "EleutherAI/gpt-j-6b", "decoder", "gpt2", "rotary", **_GPT, rotary_dim=8, n_positions=130),
    _other(
        *("opt", "facebook/opt-125m", "decoder", "opt", "BOS before every text, positions begin at 2"),
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=32,
        max_position_embeddings=130,
    ),
    _other("bloom", "bigscience/bloom-560m", "decoder", "gpt2", "ALiBi", hidden_size=32, n_layer=2, n_head=2),
    _other("mpt", "mosaicml/mpt-7b", "decoder", "gpt2", "ALiBi", d_model=32, n_heads=2, n_layers=2, max_seq_len=128),
    _other(
        *("falcon", "tiiuae/falcon-rw-1b", "decoder", "gpt2", "one key for all heads"),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        multi_query=True,
    ),
    _decoder(
        "llama",
        "meta-llama/Llama-3.2-1B",
        "llama",
        "no pad, tied, bf16",
        dtype="bfloat16",
        tie_word_embeddings=True,
        generation={"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    ),
    _decoder(
        "mistral", "mistralai/Mistral-7B-v0.1", "llama", "sliding window, bf16", dtype="bfloat16", sliding_window=8
    ),
    _decoder("mixtral", "mistralai/Mixtral-8x7B-v0.1", "llama", "experts", num_local_experts=4, num_experts_per_tok=2),
    _decoder(
        "qwen2",
        "Qwen/Qwen2.5-0.5B-Instruct",
        "qwen",
        "no BOS, pads left, tied, bf16",
        dtype="bfloat16",
        tie_word_embeddings=True,
        generation=_SAMPLES,
    ),
    _decoder(
        "qwen3", "Qwen/Qwen3-0.6B", "qwen", "no BOS, norms of queries", dtype="bfloat16", tie_word_embeddings=True
    ),
    _decoder(
        "qwen2_moe",
        "Qwen/Qwen1.5-MoE-A2.7B",
        "qwen",
        "experts",
        num_experts=4,
        shared_expert_intermediate_size=32,
        **_EXPERTS,
    ),
    _decoder("qwen3_moe", "Qwen/Qwen3-30B-A3B", "qwen", "experts", num_experts=4, **_EXPERTS),
    _decoder("gemma", "google/gemma-2b", "gemma", "BOS, pads left, scaled embeddings", tie_word_embeddings=True),
    _decoder(
        "gemma2", "google/gemma-2-2b", "gemma", "soft caps, sliding window", sliding_window=8, query_pre_attn_scalar=16
    ),
    _decoder(
        "gemma3_text",
        "google/gemma-3-1b-it",
        "gemma",
        "sliding window",
        sliding_window=8,
        query_pre_attn_scalar=16,
        dtype="bfloat16",
    ),
    _decoder("phi", "microsoft/phi-2", "gpt2", "half rotary"),
    _decoder("phi3", "microsoft/Phi-3-mini-4k-instruct", "llama", "joined projections", dtype="bfloat16"),
    _decoder("stablelm", "stabilityai/stablelm-2-1_6b", "gpt2", "half rotary"),
    _decoder("starcoder2", "bigcode/starcoder2-3b", "gpt2", "sliding window", sliding_window=8),
    _decoder("olmo2", "allenai/OLMo-2-0425-1B", "gpt2", "norms behind layers"),
    _decoder("granite", "ibm-granite/granite-3.1-2b-instruct", "gpt2", "multipliers", logits_scaling=8.0),
    _decoder("smollm3", "HuggingFaceTB/SmolLM3-3B", "qwen", "layers without positions", tie_word_embeddings=True),
    _decoder(
        "deepseek_v3",
        "deepseek-ai/DeepSeek-V3",
        "gpt2",
        "latent attention, experts",
        num_key_value_heads=2,
        head_dim=8,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        **_EXPERTS,
    ),
    _decoder(
        "gpt_oss",
        "openai/gpt-oss-20b",
        "gpt2",
        "experts, sinks",
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
    ),
    _other(
        "mamba",
        "state-spaces/mamba-130m-hf",
        "decoder",
        "gpt2",
        "no attention; `target_modules: [in_proj, x_proj]`",
        hidden_size=32,
        num_hidden_layers=2,
        lora={"target_modules": ["in_proj", "x_proj"]},
    ),
    _other("t5", "google-t5/t5-small", "encoder-decoder", "t5", "tied, no position limit", **_T5),
    _other("mt5", "google/mt5-small", "encoder-decoder", "t5", "untied", **_T5, tie_word_embeddings=False),
    _other(
        "bart",
        "facebook/bart-base",
        "encoder-decoder",
        "roberta",
        "positions begin at 2",
        **_BART,
        **_SHORT,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    ),
    _other("pegasus", "google/pegasus-xsum", "encoder-decoder", "t5", "fixed positions", **_BART, **_SHORT),
    _other(
        "marian", "Helsinki-NLP/opus-mt-en-de", "encoder-decoder", "t5", "fixed positions, no BOS", **_BART, **_SHORT
    ),
    _other(
        "m2m_100",
        "facebook/nllb-200-distilled-600M",
        "encoder-decoder",
        "xlm_roberta",
        "fixed positions that grow",
        **_BART,
        **_SHORT,
    ),
    _other(
        "led",
        "allenai/led-base-16384",
        "encoder-decoder",
        "roberta",
        "sliding window",
        **_BART,
        attention_window=[8, 8],
        max_encoder_position_embeddings=72,
        max_decoder_position_embeddings=72,
        decoder_start_token_id=2,
    ),
)
ARCHITECTURES: Final[dict[str, Architecture]] = {found.name: found for found in _FOUND}
