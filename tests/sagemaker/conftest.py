"""Amazon as moto plays it, on this machine, with the real SDK talking to it."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cloud import BUCKET, REGION


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the SDK warns of how it imports itself
        import sagemaker.train.model_trainer  # noqa: F401
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def amazon(address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session that talks to moto, as all others do from here on."""
    import boto3

    told = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "SAGEMAKER_VALIDATE_ROLE": "false",  # moto cannot say what a role may do,
        "AWS_MAX_ATTEMPTS": "1",  # however often it is asked
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session(region_name=REGION)
    session.client("s3").create_bucket(Bucket=BUCKET)
    return session


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder as `dojang data prepare` leaves it: one easy problem in each split."""
    for split in ("train", "test"):
        truth = {"private": [{"input": "1\n", "output": "1\n"}]}
        row = {
            "data_source": "code_contests",
            "prompt": [{"role": "user", "content": "Print the number."}],
            "ability": "code",
            "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
            "extra_info": {"id": f"{split}/1", "split": split, "index": 0, "tier": "easy"},
        }
        (tmp_path / "data" / split).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data" / split / "0.parquet")
    return tmp_path / "data"
