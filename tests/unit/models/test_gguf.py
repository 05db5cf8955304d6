"""The GGUF reader against files written by hand and decoded one number at a time."""

import struct

import numpy as np
import pytest

from dojang.core.errors import ModelError
from dojang.models.gguf import read

F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q8_0: 34}


def random_blocks(storage, count, seed=0):
    """Blocks of random numbers behind finite scales."""
    rng = np.random.default_rng(seed)
    scales = 2 if storage == Q4_1 else 1
    blocks = []
    for _ in range(count):
        head = rng.normal(size=scales).astype("<f2").tobytes()
        blocks.append(head + rng.bytes(BLOCK_BYTES[storage] - len(head)))
    return b"".join(blocks)


def reference(storage, data):
    """What the format's description says, number by number."""
    values = []
    for at in range(0, len(data), BLOCK_BYTES[storage]):
        block = data[at : at + BLOCK_BYTES[storage]]
        scale = np.float32(struct.unpack_from("<e", block)[0])
        for i in range(32):
            if storage == Q8_0:
                values.append(scale * np.float32(struct.unpack_from("b", block, 2 + i)[0]))
                continue
            packed = block[-16:][i % 16]
            nibble = np.float32(packed & 15 if i < 16 else packed >> 4)
            if storage == Q4_0:
                values.append(scale * (nibble - np.float32(8)))
            else:
                values.append(scale * nibble + np.float32(struct.unpack_from("<e", block, 2)[0]))
    return np.array(values, np.float32)


@pytest.mark.parametrize("storage", [Q4_0, Q4_1, Q8_0])
def test_quantised_tensors_decode_exactly(tmp_path, write_gguf, stored, storage):
    first, second = random_blocks(storage, 6), random_blocks(storage, 2, seed=1)
    tensors = {"a": stored((3, 64), storage, first), "b": stored((32, 2, 1)[::-1], storage, second)}
    file = read(write_gguf(tmp_path / "x.gguf", {}, tensors))
    assert file.tensors["a"].shape == (3, 64)
    np.testing.assert_array_equal(file.tensor("a"), reference(storage, first).reshape(3, 64))
    np.testing.assert_array_equal(file.tensor("b"), reference(storage, second).reshape(1, 2, 32))


@pytest.mark.parametrize(("storage", "kind"), [(F32, "<f4"), (F16, "<f2")])
def test_plain_tensors_decode_exactly(tmp_path, write_gguf, stored, storage, kind):
    values = np.random.default_rng(0).normal(size=(5, 7)).astype(kind)
    file = read(write_gguf(tmp_path / "x.gguf", {}, {"w": stored((5, 7), storage, values.tobytes())}))
    decoded = file.tensor("w")
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, values.astype(np.float32))
    decoded[0, 0] = 1.0  # a copy, not a window into the file


def test_metadata_comes_back(tmp_path, write_gguf):
    metadata = {"a": 7, "b": 0.5, "c": True, "d": "wörter", "e": ["x", ""], "f": [1, 2, 3], "g": [0.25]}
    assert read(write_gguf(tmp_path / "x.gguf", metadata, {})).metadata == metadata


def test_missing_or_mistyped_metadata_is_refused(tmp_path, write_gguf):
    file = read(write_gguf(tmp_path / "x.gguf", {"n": 7}, {}))
    assert file.value("n", int) == 7
    with pytest.raises(ModelError, match="no metadata 'm'"):
        file.value("m", int)
    with pytest.raises(ModelError, match="'n' is 7, not of type str"):
        file.value("n", str)


@pytest.mark.parametrize("alignment", [1, 16, 256])
def test_tensors_may_be_aligned_otherwise(tmp_path, write_gguf, stored, alignment):
    values = {name: np.arange(n, dtype="<f4") for name, n in (("a", 3), ("b", 70))}
    tensors = {name: stored(v.shape, F32, v.tobytes()) for name, v in values.items()}
    file = read(write_gguf(tmp_path / "x.gguf", {"general.alignment": alignment}, tensors))
    for name, expected in values.items():
        np.testing.assert_array_equal(file.tensor(name), expected)


def test_other_formats_are_refused(tmp_path):
    for content in (b"", b"GG", b"PK\x03\x04 a zip file"):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match="not a GGUF file"):
            read(path)
    with pytest.raises(ModelError, match=r"cannot read .*missing\.gguf: No such file"):
        read(tmp_path / "missing.gguf")


def test_other_versions_are_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(ModelError, match="GGUF version 1"):
        read(path)


def test_truncation_is_detected(tmp_path, write_gguf, stored):
    tensors = {"w": stored((2, 32), Q8_0, random_blocks(Q8_0, 2))}
    path = write_gguf(tmp_path / "x.gguf", {"k": ["a", "b"], "n": [1, 2]}, tensors)
    whole = path.read_bytes()
    end = read(path).tensors["w"].offset + 2 * BLOCK_BYTES[Q8_0]
    for size in range(4, end):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="truncated"):
            read(path).tensor("w")
    path.write_bytes(whole[:end])
    assert read(path).tensor("w").shape == (2, 32)


def test_an_absurd_count_is_a_truncated_file(tmp_path):
    key = struct.pack("<Q", 1) + b"k"
    for tail in (struct.pack("<IIQ", 9, 4, 2**62), struct.pack("<IQ", 8, 2**63)):
        path = tmp_path / "x.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + tail)
        with pytest.raises(ModelError, match="truncated"):
            read(path)


def test_damage_is_reported(tmp_path, write_gguf, stored):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"\xff")
    with pytest.raises(ModelError, match="not UTF-8"):
        read(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 99))
    with pytest.raises(ModelError, match="unknown type 99"):
        read(path)
    with pytest.raises(ModelError, match="aligned to 0"):
        read(write_gguf(path, {"general.alignment": 0}, {}))


def test_unknown_storage_type_is_refused(tmp_path, write_gguf, stored):
    file = read(write_gguf(tmp_path / "x.gguf", {}, {"w": stored((256,), 77, bytes(144))}))
    with pytest.raises(ModelError, match=r"tensor 'w' has the unknown storage type 77.*Q4_K_M"):
        file.tensor("w")


def test_k_quants_decode_as_the_format_says(tmp_path, write_gguf, stored):
    """Q6_K, decoded number by number: 256 numbers of 6 bits, 16 scales of 8 bits, one of 16 bits."""
    rng = np.random.default_rng(0)
    low, high, scales = rng.bytes(128), rng.bytes(64), rng.integers(-128, 128, 16, dtype=np.int8)
    whole = np.float16(0.03)
    data = low + high + scales.tobytes() + whole.tobytes()
    wanted = np.zeros(256, np.float32)
    for half in range(2):
        for at in range(32):
            for quarter in range(4):
                byte = low[64 * half + 32 * (quarter % 2) + at]
                bits = (byte >> 4 if quarter > 1 else byte & 15) | ((high[32 * half + at] >> (2 * quarter)) & 3) << 4
                place = 128 * half + 32 * quarter + at
                wanted[place] = np.float32(whole) * scales[place // 16] * (bits - 32)
    file = read(write_gguf(tmp_path / "x.gguf", {}, {"w": stored((256,), 14, data)}))
    np.testing.assert_allclose(file.tensor("w"), wanted, rtol=1e-6)


def test_rows_of_partial_blocks_are_refused(tmp_path, write_gguf, stored):
    file = read(write_gguf(tmp_path / "x.gguf", {}, {"w": stored((2, 48), Q8_0, bytes(102))}))
    with pytest.raises(ModelError, match="rows of 48"):
        file.tensor("w")
