"""FSDP on a CPU, for tests: with this folder on PYTHONPATH, accelerate takes gloo processes on a CPU for processes on GPUs.

torch shares a model out on CPUs as well; only accelerate 1.15 (AcceleratorState.__init__) leaves FSDP out there.
"""

import os

if "LOCAL_RANK" in os.environ and os.environ.get("ACCELERATE_USE_FSDP") == "true":
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    unpatched = AcceleratorState.__init__

    def patched(self, *args, **kwargs):
        if PartialState._shared_state.get("distributed_type") is DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        unpatched(self, *args, **kwargs)

    AcceleratorState.__init__ = patched
