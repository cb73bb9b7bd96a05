"""Networks on sequences of token ids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.core.errors import UserError
from fedskew.models.registry import Classifier, check_positive, network


class FastText(Classifier):
    """The mean embedding of all tokens through one linear layer."""

    def __init__(self, classes: int, vocab: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=0)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        # Padding counts in the mean, as in the code this follows: a short text has small features.
        return self.hidden(self.embedding(x).mean(dim=1))


@network("fasttext")
def fasttext(classes: int, shape: tuple[int, ...], vocab: int = 98_635, width: int = 32) -> FastText:
    """Mean of word embeddings and one linear layer; token 0 is padding: FedVLS on AG News."""
    if len(shape) != 1:
        raise UserError(f"network 'fasttext' needs sequences of token ids, not {list(shape)}. Choose another --model.")
    check_positive("fasttext", vocab=vocab, width=width)
    return FastText(classes, vocab, width)


class TransformerBlock(nn.Module):
    """Attention among the tokens of a text, then two linear layers at each; both add to their normalized input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        normal = self.before_attention(x)
        batch, length, width = x.shape
        query, key, value = (
            layer(normal).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None, None, :])
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_layers(x))))


class Transformer(Classifier):
    """Embeddings of tokens and places, blocks of attention, and the mean over all tokens but padding."""

    def __init__(self, classes: int, length: int, vocab: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=0)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        there = x != 0
        # an empty text attends to its first padding, for a mean over nothing is no number
        seen = torch.cat((there[:, :1] | ~there.any(1, keepdim=True), there[:, 1:]), dim=1)
        out = self.embedding(x) + self.places
        for block in self.blocks:
            out = block(out, seen)
        kept = seen[..., None].to(out.dtype)
        return (self.last(out) * kept).sum(1) / kept.sum(1)


@network("transformer")
def transformer(
    classes: int,
    shape: tuple[int, ...],
    vocab: int = 98_635,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
) -> Transformer:
    """A small transformer on token ids: two blocks of width 64 with four heads; token 0 is padding."""
    if len(shape) != 1:
        raise UserError(
            f"network 'transformer' needs sequences of token ids, not {list(shape)}. Choose another --model."
        )
    check_positive("transformer", vocab=vocab, width=width, depth=depth, heads=heads)
    if width % heads:
        raise UserError(f"'width' of network 'transformer' is {width}. Give a multiple of its {heads} heads.")
    return Transformer(classes, shape[0], vocab, width, depth, heads)
