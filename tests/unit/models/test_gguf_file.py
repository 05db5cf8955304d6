"""The reader of GGUF files against the gguf library's, and against damaged files."""

import struct

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from dojang.core.errors import ModelError
from dojang.models.gguf_file import GgufFile
from gguf_models import packed, write_model
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("gguf") / "m.gguf", tiny_model("qwen3"), kind=Kind.Q8_0)


def test_it_reads_what_the_library_reads(path):
    file, library = GgufFile(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in library.fields.items() if not key.startswith("GGUF.")}
    assert file.metadata == fields
    assert list(file.tensors) == [tensor.name for tensor in library.tensors]
    for tensor in library.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(file.values(tensor.name), expected)
    assert file.architecture == "qwen3"
    assert file.require("block_count") == file.get("block_count") == 3
    with pytest.raises(ModelError, match=r"has no metadata qwen3\.ssm; convert"):
        file.require("ssm")


def test_rows_are_a_part_of_the_tensor(path):
    file = GgufFile(path)
    tensor = file.tensors["token_embd.weight"]
    assert np.array_equal(file.rows(tensor, 7, 19), file.values("token_embd.weight")[7:19])
    assert tensor.bits == 8.5


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_k_quants_are_decoded_in_any_blocks(kind, tmp_path):
    """The library decodes 16 rows at a time; all at once gives the same."""
    values = packed(np.zeros((40, 512), np.float32), kind)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("x", values, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    expected = gguf.dequantize(values, kind)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > 50
    assert np.array_equal(GgufFile(tmp_path / "k.gguf").values("x"), expected)


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path, share, tmp_path):
    whole = path.read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelError, match=r"half\.gguf is no complete GGUF file: .*; download it again|cannot be read"):
        GgufFile(tmp_path / "half.gguf")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(50), "of version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(50), "of a big-endian machine"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "ends within its header"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"x" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000,
            "has metadata that describe no model .RecursionError",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 11) + b"split.count" + struct.pack("<IQ", 8, 3) + b"two",
            "has metadata that describe no model .ValueError",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"x", 77), "a value of the unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"x", 9, 4, 2**61), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQQ1s", 3, 0, 1, 1, b"\xff"), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"x", 99), "has 99 dimensions"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"x", 1, 7, 8, 0), "no multiple of 32"),
    ],
)
def test_other_files_are_refused(content, said, tmp_path):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=said):
        GgufFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", [24, 999])  # int8, and one that no version has
def test_a_quantization_that_cannot_be_decoded_is_named(kind, tmp_path):
    content = b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"x", 1, 32, kind, 0) + bytes(256)
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"tensor x of .* quantization that the installed gguf library cannot decode"):
        GgufFile(tmp_path / "m.gguf")


def test_one_part_of_a_split_model_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.count", 3)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ModelError, match="is one of 3 parts: join them with `llama-gguf-split --merge`"):
        GgufFile(tmp_path / "m.gguf")
