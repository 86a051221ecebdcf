"""A small byte-level BPE tokenizer in the shape that chunking needs."""

from __future__ import annotations

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from coinkv.tokens import Tokenized

TRAINING = [
    "The quick brown fox jumps over the lazy dog. It was not amused; the dog, that is.",
    "In 2019 the company grew by 5 % and in 2020 by 6 %.\n\nNobody knew why. 我是中国人。你好！",
    "Emoji 👩‍👩‍👧 and 🎉 and café with cafe\u0301.\r\n\r\nThe end of the text.",
]


@functools.cache
def byte_level(trim_offsets: bool = False) -> Tokenizer:
    """A small byte-level BPE: most characters beyond ASCII take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if trim_offsets:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


class ByteTokens:
    """The tokenizer as the backbone offers it; counts its calls."""

    def __init__(self, trim_offsets: bool = False) -> None:
        self.tokenizer = byte_level(trim_offsets)
        self.texts: list[str] = []

    def tokenize(self, text: str) -> Tokenized:
        self.texts.append(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return Tokenized(tuple(encoding.ids), tuple(encoding.offsets))

    def decode(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)
