"""The disk tier in every codec: ranges, damage, sizes, and raw files as they always were."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_blocks import KEY, OTHER_KEY, bits, block, files_in, path_of
from safetensors import safe_open

from coinkv.errors import CorruptBlockError, InputError
from coinkv.kv.codec import CODECS, CodecName, codec_named
from coinkv.store.disk import DiskStore
from coinkv.store.layout import checksum

PAGE = 32
PROJECT = Path(__file__).parents[2]
QUANTISED = [name for name in CODECS if name != "raw"]
codecs = pytest.mark.parametrize("codec", CODECS)
quantised = pytest.mark.parametrize("codec", QUANTISED)


def decoded(codec: CodecName, kv: torch.Tensor) -> torch.Tensor:
    """What a codec makes of a block, without any store."""
    coder, tokens = codec_named(codec), len(kv)
    lengths = [min(PAGE, tokens - start) for start in range(0, tokens, PAGE)]
    return coder.decode(coder.encode(kv), kv.shape[1:], kv.dtype, lengths)


def rewritten(path: Path, **facts: str) -> None:
    """Change facts of a file's header and make its checksum right again."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8 : 8 + length])
    known = tensors.pop("__metadata__") | facts
    del known["header"]
    text = json.dumps([known, tensors], sort_keys=True, separators=(",", ":"))
    known["header"] = checksum(text.encode())
    header = json.dumps({"__metadata__": known, **tensors}, separators=(",", ":")).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


@codecs
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_read_equals_slicing_the_decoded_block(
    codec: CodecName, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokens = data.draw(st.sampled_from([1, 31, 32, 33, 64, 65, 110]))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
    kv, positions = block(tokens, dtype=dtype, heads=data.draw(st.integers(1, 3)), dim=7)
    ends = st.tuples(st.integers(0, tokens), st.integers(0, tokens))
    spans = data.draw(st.lists(ends.map(lambda pair: (min(pair), max(pair))), max_size=6))
    store = DiskStore(tmp_path_factory.mktemp("law"), fsync=False, codec=codec)
    written = store.put(KEY, kv, positions)
    assert written == store.size_bytes(KEY)
    rows = [row for start, end in spans for row in range(start, end)]
    coder = codec_named(codec)
    page_bytes = sum(
        coder.page_bytes(kv.shape[1:], dtype, min(PAGE, tokens - page * PAGE))
        for page in {row // PAGE for row in rows}
    )
    for warm in (False, True):
        read = store.get(KEY, spans)
        assert read is not None
        assert read.kv.dtype == dtype
        assert read.kv.is_contiguous()
        assert bits(read.kv) == bits(decoded(codec, kv)[rows])
        assert torch.equal(read.positions, positions[rows])
        assert read.page_bytes == page_bytes
        assert not warm or read.bytes_read == page_bytes
    whole = store.get(KEY)
    assert whole is not None
    assert bits(whole.kv) == bits(decoded(codec, kv))


RAW_FILES = {
    torch.float16: "55aa83b351f5f9546ada6ca453f48e334c076110ccc7fa3b6df9c99677970c44",
    torch.bfloat16: "e746f65e29a43846df7ee7b3207041350af4cd720aa3478acdde6517c80cd4df",
    torch.float32: "51302dc6c722c055791c9e136e23548d53b77fef0180af07d846b08425c4d520",
}


def steady(dtype: torch.dtype) -> torch.Tensor:
    count = 70 * 3 * 2 * 2 * 4
    return (torch.arange(count) % 251).sub(125).div(8).to(dtype).reshape(70, 3, 2, 2, 4)


@pytest.mark.parametrize("dtype", RAW_FILES)
def test_a_raw_file_is_byte_for_byte_what_it_was_before_there_were_codecs(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    DiskStore(tmp_path).put(KEY, steady(dtype), torch.arange(100, 170))
    assert hashlib.sha256(path_of(tmp_path).read_bytes()).hexdigest() == RAW_FILES[dtype]


CODED_FILES: dict[CodecName, str] = {
    "int8": "6f7739ee5873aabb4dec89370d7ff209dc2571f69d0e3ea9d182552095deb84f",
    "kivi": "33419f4211025172e7abaa5a2030941b9f64eebf8b25fd9323184c596c5a8c38",
}


@quantised
def test_a_coded_file_is_the_same_on_every_machine(tmp_path: Path, codec: CodecName) -> None:
    DiskStore(tmp_path, codec=codec).put(KEY, steady(torch.float16), torch.arange(100, 170))
    assert hashlib.sha256(path_of(tmp_path).read_bytes()).hexdigest() == CODED_FILES[codec]


@quantised
def test_a_coded_file_is_a_safetensors_file_that_says_what_it_is(
    tmp_path: Path, codec: CodecName
) -> None:
    kv, positions = block(70, dtype=torch.bfloat16)
    DiskStore(tmp_path, codec=codec).put(KEY, kv, positions)
    with safe_open(path_of(tmp_path), framework="pt") as file:
        assert sorted(file.keys()) == ["kv", "positions"]
        assert torch.equal(file.get_tensor("kv"), codec_named(codec).encode(kv))
        assert torch.equal(file.get_tensor("positions"), positions)
        facts = file.metadata()
    assert (facts["format_version"], facts["codec"]) == ("2", codec)
    assert (facts["dtype"], facts["shape"]) == ("BF16", "70,3,2,2,4")
    assert len(facts["kv_pages"].split(",")) == 3


@quantised
@pytest.mark.parametrize("dim", [6, 7])
def test_the_decoder_printed_in_the_format_page_decodes_a_page(codec: CodecName, dim: int) -> None:
    text = (PROJECT / "docs" / "on-disk-format.md").read_text()
    printed = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(printed[1], names)
    decode_page = names["decode_page"]
    assert callable(decode_page)
    kv, _ = block(21, dtype=torch.float32, heads=3, dim=dim)
    kv[..., 2] += 40
    page = codec_named(codec).encode(kv).numpy().tobytes()
    keys, values = decode_page(page, 3, 3, dim, 21, codec)
    expected = decoded(codec, kv)
    for half, got in ((0, keys), (1, values)):
        torch.testing.assert_close(torch.from_numpy(got).float(), expected[:, :, half])


@codecs
def test_a_store_of_any_codec_reads_every_other_and_writes_no_key_twice(
    tmp_path: Path, codec: CodecName
) -> None:
    kv, positions = block(40)
    DiskStore(tmp_path, codec=codec).put(KEY, kv, positions)
    content = path_of(tmp_path).read_bytes()
    for other in CODECS:
        store = DiskStore(tmp_path, codec=other)
        read = store.get(KEY, [(30, 40)])
        assert read is not None
        assert bits(read.kv) == bits(decoded(codec, kv)[30:40])
        assert store.verify(KEY)
        assert store.put(KEY, kv, positions) == 0
    assert path_of(tmp_path).read_bytes() == content


@pytest.mark.parametrize("tokens", [32, 33, 40, 64, 65, 100, 128, 352, 511])
def test_kivi_takes_two_fifths_of_the_16_bit_file_at_every_length(
    tmp_path: Path, tokens: int
) -> None:
    kv = torch.randn(1, 30, 2, 3, 64).half().expand(tokens, -1, -1, -1, -1)
    sizes = {
        codec: DiskStore(tmp_path / codec, fsync=False, codec=codec).put(
            KEY, kv, torch.arange(tokens)
        )
        for codec in CODECS
    }
    assert sizes["kivi"] <= 0.40 * sizes["raw"]
    assert sizes["int8"] <= 0.53 * sizes["raw"]


@quantised
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_a_codec_cannot_hold_are_refused_and_nothing_is_written(
    tmp_path: Path, codec: CodecName, bad: float
) -> None:
    kv, positions = block(70)
    kv[69, 2, 1, 1, 3] = bad
    store = DiskStore(tmp_path, codec=codec)
    with pytest.raises(InputError, match="use the codec raw"):
        store.put(KEY, kv, positions)
    assert files_in(tmp_path) == []
    assert DiskStore(tmp_path).put(KEY, kv, positions) > 0


@quantised
def test_a_flipped_byte_anywhere_in_a_coded_file_is_found_or_changes_nothing(
    tmp_path: Path, codec: CodecName
) -> None:
    kv, positions = block(33)
    DiskStore(tmp_path, codec=codec).put(KEY, kv, positions)
    path, dice = path_of(tmp_path), random.Random(5)
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    text = content[8:length].rstrip()
    for at in [*range(length), *range(length, len(content), 7), len(content) - 1]:
        flipped = bytearray(content)
        flipped[at] ^= dice.randrange(1, 256)
        path.write_bytes(flipped)
        try:
            read = DiskStore(tmp_path).get(KEY)
        except CorruptBlockError:
            pass
        else:  # white space for white space, behind the text
            assert 8 + len(text) <= at < length
            assert read is not None
            assert bits(read.kv) == bits(decoded(codec, kv))


@quantised
def test_a_damaged_page_of_a_coded_file_does_not_disturb_reads_of_others(
    tmp_path: Path, codec: CodecName
) -> None:
    kv, positions = block(70)
    store = DiskStore(tmp_path, codec=codec)
    store.put(KEY, kv, positions)
    content = bytearray(path_of(tmp_path).read_bytes())
    page = codec_named(codec).page_bytes(kv.shape[1:], kv.dtype, PAGE)
    last = codec_named(codec).page_bytes(kv.shape[1:], kv.dtype, 6)
    content[len(content) - last - page] ^= 1
    path_of(tmp_path).write_bytes(content)
    rest = store.get(KEY, [(64, 70), (0, 32)])
    assert rest is not None
    assert bits(rest.kv) == bits(decoded(codec, kv)[[*range(64, 70), *range(32)]])
    for verb in (lambda: store.get(KEY, [(63, 64)]), lambda: store.verify(KEY)):
        with pytest.raises(CorruptBlockError, match="page 1 fails its checksum"):
            verb()


@pytest.mark.parametrize(
    "facts",
    [
        {"codec": "zip"},
        {"codec": "raw"},
        {"format_version": "3"},
        {"format_version": "1"},
        {"dtype": "F64"},
        {"dtype": "I8"},
        {"shape": "70,3,2,2,5"},
        {"shape": "70,3,2,2"},
        {"shape": "0,3,2,2,4"},
        {"shape": "-70,3,2,2,4"},
        {"shape": ""},
        {"codec": "int8"},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_or_is_of_another_format_is_refused(
    tmp_path: Path, facts: dict[str, str]
) -> None:
    DiskStore(tmp_path, codec="kivi").put(KEY, *block(70))
    rewritten(path_of(tmp_path))
    assert DiskStore(tmp_path).verify(KEY)
    rewritten(path_of(tmp_path), **facts)
    with pytest.raises(CorruptBlockError):
        DiskStore(tmp_path).get(KEY)


def test_a_store_in_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no codec is called 'gzip'"):
        DiskStore(tmp_path, codec="gzip")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@quantised
def test_a_read_of_a_coded_block_belongs_to_its_reader(tmp_path: Path, codec: CodecName) -> None:
    kv, positions = block(40)
    store = DiskStore(tmp_path, codec=codec)
    for key in (KEY, OTHER_KEY):
        store.put(key, kv, positions)
    for _ in range(2):
        read = store.get(KEY)
        assert read is not None
        assert bits(read.kv) == bits(decoded(codec, kv))
        read.kv.zero_()
