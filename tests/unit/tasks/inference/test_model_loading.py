"""Models as `evergreen try` loads them."""

from __future__ import annotations

import torch
from transformers import XLNetConfig, XLNetForMultipleChoice

from params.schema import ObjectiveChoice
from tasks.inference.model_loading import load_network
from trainer import objectives


def test_padding_behind_a_text_does_not_change_the_scores_of_a_head_that_reads_the_end(tmp_path):
    """XLNet's, with choices of several lengths."""
    config = XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16)
    XLNetForMultipleChoice(config).save_pretrained(tmp_path)
    objective = objectives.build_objective(ObjectiveChoice(name="multiple_choice"))
    network = load_network(tmp_path, objective, "a model").eval()
    ids, mask = torch.tensor([[[5, 6, 7, 8]], [[9, 4, 0, 0]]]), torch.tensor([[[1] * 4], [[1, 1, 0, 0]]])
    with torch.inference_mode():
        together = network(input_ids=ids, attention_mask=mask).logits
        alone = network(input_ids=ids[1:, :, :2]).logits
    torch.testing.assert_close(together[1:], alone)
