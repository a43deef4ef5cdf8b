"""How the processes of a training share the model: data parallelism, or shards of it by FSDP or DeepSpeed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from params.schema import Launch

Distribution = Literal["data parallelism", "FSDP", "DeepSpeed", "Megatron-LM"]
_BY_TYPE: dict[str, Distribution] = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}


def read_parallelism_strategy(launch: Launch) -> Distribution:
    """Return what `launch.accelerate_config` asks for; a file that cannot be read counts as data parallelism.

    `check` and accelerate report what is wrong with such a file.
    """
    if launch.accelerate_config is None:
        return "data parallelism"
    try:
        content = YAML(typ="safe").load(Path(launch.accelerate_config))
        return _BY_TYPE.get(content.get("distributed_type"), "data parallelism")
    except (OSError, YAMLError, AttributeError):
        return "data parallelism"
