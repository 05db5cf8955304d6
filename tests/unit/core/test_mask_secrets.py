import pytest

from dojang.core.mask_secrets import mask_arguments, masked


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "hf_abc", "***"),
        ("AWS_SECRET_ACCESS_KEY", "abc", "***"),
        ("MY_password", "x", "***"),
        ("RAY_GRAFANA_HOST", "http://host:3000", "http://host:3000"),
        ("HF_ENDPOINT", "https://user:pass@hub.example/x", "https://***@hub.example/x"),
        ("NCCL_DEBUG", "INFO", "INFO"),
    ],
)
def test_variables(name: str, value: str, shown: str) -> None:
    assert masked(name, value) == shown


def test_arguments() -> None:
    given = [
        "dojang",
        "train",
        "--token",
        "abc",
        "judge.token=abc",
        "--api-key=abc",
        "rollout.max_tokens=512",
        "--json",
    ]
    shown = [
        "dojang",
        "train",
        "--token",
        "***",
        "judge.token=***",
        "--api-key=***",
        "rollout.max_tokens=512",
        "--json",
    ]
    assert mask_arguments(given) == shown
    assert mask_arguments(["url=http://me:pass@host/x", "--password"]) == ["url=http://***@host/x", "--password"]
    assert mask_arguments(["--token", "--token", "x"]) == ["--token", "***", "x"]
