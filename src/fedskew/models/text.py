"""Networks on sequences of token numbers."""

from __future__ import annotations

from torch import Tensor, nn

from fedskew.errors import UserError
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
        raise UserError(f"network 'fasttext' needs sequences of token numbers, not samples of shape {list(shape)}")
    check_positive("fasttext", vocab=vocab, width=width)
    return FastText(classes, vocab, width)
