"""Single tokens as bytes and as text: a token may be a part of a character, or of several."""

from __future__ import annotations

import codecs
import functools
import re

from coinkv.model.backbone import Backbone

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Bytes and texts of a model's tokens.

    Args:
        backbone: the model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._tokenizer = backbone.text_tokenizer
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._byte_level = b'"ByteLevel"' in self._tokenizer.decoder.__getstate__()
        self.of = functools.lru_cache(maxsize=16_384)(self._of)

    def _of(self, token_id: int) -> tuple[str, list[int]]:
        r"""A token's text and its bytes; `bytes:\xe2\x80` where it is no whole characters."""
        spelled = self._bytes(token_id)
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        return text, list(spelled)

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        piece: str | None = self._tokenizer.id_to_token(token_id)
        if piece is None:  # models have more logits than their tokenizers have tokens
            return b""
        if self._byte_level:
            letters = _letters()
            if all(letter in letters for letter in piece):
                return bytes(letters[letter] for letter in piece)
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        return piece.replace("\u2581", " ").encode()  # SentencePiece writes spaces so


@functools.cache
def _letters() -> dict[str, int]:
    """Byte by the letter that byte-level vocabularies write for it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


class Offsets:
    """Where each token of a text begins, counted in characters that were whole before it."""

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, spelled: list[int]) -> int:
        """Offset of a token, given its bytes."""
        before = self._characters
        self._characters += len(self._decoder.decode(bytes(spelled)))
        return before


@functools.lru_cache(maxsize=2)
def token_texts(backbone: Backbone) -> TokenTexts:
    """The texts of a model's tokens, made once."""
    return TokenTexts(backbone)
