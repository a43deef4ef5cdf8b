"""What supervises a training, against small real processes: who failed, who stands still, how the processes end."""

from __future__ import annotations

from pathlib import Path

from params.schema import Launch
from tasks.supervision import launch_command


def command(**launch):
    return launch_command(Launch(micro_batch_size=1, **launch), Path("job.json"))[1:]


def test_the_launch_command():
    """accelerate starts one process, whatever --num_processes says, unless it is told --multi_gpu."""
    assert " ".join(command()) == (
        "-m trainer.launcher --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
        "-m trainer.worker job.json"
    )
    assert " ".join(command(num_processes=2)) == (
        "-m trainer.launcher --multi_gpu --main_process_port 0 --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no -m trainer.worker job.json"
    )
    assert command(num_processes=2, accelerate_config="fsdp.yaml")[2:6] == [
        "--config_file",
        "fsdp.yaml",
        "--num_processes",
        "2",
    ]
