"""What a neuron of the first MLP does to its own words, measured with plain hooks."""

import torch

from circuitbook import cut
from circuitbook.neurons import ablate


def falls(model, tokens, neurons, words):
    """[direct, total] fall of log p(words of the neuron) where it fires; neurons that fire nowhere
    are left out. Direct: its write is taken out of the last stream. Total: everything run again."""
    name, last = "blocks.0.mlp.hook_post", f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    logits, cache = cut.run(model, tokens, names=[name])
    post, shown = cache[name], []
    for n in neurons:
        at = post[:, :, n] > 0.1
        at[:, 0] = False
        if not at.any():
            continue
        mean = post[:, 1:, n].mean()
        push = (post[..., n] - mean)[..., None] * model.blocks[0].mlp.W_out[n]
        gone = cut.Cut(((last, lambda x, hook, push=push: x - push),))
        changes = gone, ablate.ablation(0, n, mean)
        p, *after = (
            x.log_softmax(-1)[..., words[n]].logsumexp(-1)[at]
            for x in (logits, *(cut.run(model, tokens, change)[0] for change in changes))
        )
        shown.append([(p - q).mean().item() for q in after])
    return torch.tensor(shown, dtype=torch.float64).tolist()
