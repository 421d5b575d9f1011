"""The real peers that the contract tests talk to: SeaweedFS's S3 and MLflow's server, once per session."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.services import HOST, free_port, start_mlflow, start_s3, stop
from storage.objects import ObjectStore
from storage.records import new_id


@dataclass(frozen=True)
class S3:
    """Where the session's object store is."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str

    def store(self, prefix: str, **options: float) -> ObjectStore:
        """An ObjectStore under a prefix of the bucket."""
        url = f"s3://{self.bucket}/{prefix}"
        return ObjectStore(
            url, endpoint=self.endpoint, access_key=self.access_key, secret_key=self.secret_key, **options
        )


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A real `weed mini` on a free port of loopback."""
    port = free_port()
    keys = {"access_key": "contract", "secret_key": "contract-secret"}
    process = start_s3(tmp_path_factory.mktemp("s3"), port, bucket="clawrl", **keys)
    yield S3(endpoint=f"http://{HOST}:{port}", bucket="clawrl", **keys)
    stop(process)


@pytest.fixture
def objects(s3: S3) -> ObjectStore:
    """An ObjectStore under a fresh prefix."""
    return s3.store(f"test-{new_id().lower()}")


@pytest.fixture(scope="session")
def mlflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's MLflow server keeps its database and log."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="session")
def mlflow_uri(mlflow_home: Path) -> Iterator[str]:
    """A real MLflow server on a free port of loopback."""
    port = free_port()
    process = start_mlflow(mlflow_home, port)
    yield f"http://{HOST}:{port}"
    stop(process)
