"""The models: what chapter 00 teaches, for later chapters to use.

Generated from scripts/00_models.py; do not edit.
"""

import torch


def token_losses(model, windows):
    """loss[w, k-1] = -log p(token k of window w | all before), in nats: [window, length - 1]."""
    rows = [model(one, return_type="loss_per_token") for one in windows.split(1)]
    return torch.cat(rows).cpu()
