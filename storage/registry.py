"""The versions in MLflow's model registry, where people compare, tag and promote them.

What it does: one registered model per model name, one MLflow version per committed version (found again by its
source), a run with its metrics, and the aliases `live`, `champion`, `pinned`.
What it leaves out: the truth. Our numbers and the manifests (`storage/versions.py`) are that; all of this can be made
anew from them. MLflow's own version numbers are for display.

Aliases are read with one small request (about 15 ms). `RegistryDown` means that MLflow does not answer: serving and
learning go on without it.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

# Seconds and not minutes until we know that the server is away; read by mlflow when it is imported
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException, RestException
from mlflow.tracking import MlflowClient

from storage.records import Version

NOT_FOUND = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


class RegistryDown(ConnectionError):
    """MLflow does not answer. What was to be written there is made up for later."""


class Registry:
    """One model's versions and aliases in MLflow."""

    def __init__(self, tracking_uri: str, model: str) -> None:
        self.uri, self.model = tracking_uri, model
        self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        self._theirs: dict[int, str] = {}  # our number -> MLflow's version
        self._ready = False

    def ensure_version(self, version: Version, gate: str) -> str:
        """The MLflow version of ours: found by its source, or made. `gate` is what the gate said ("passed", ...)."""
        with self._boundary(f"registering version {version.number}"):
            self._ensure_model()
            found = self._find(version)
            if found is None:
                made = self._client.create_model_version(
                    name=self.model,
                    source=version.source,
                    run_id=self._ensure_run(version),
                    tags=_tags(version, gate),
                    description=_description(version, gate),
                    await_creation_for=None,
                )
                found = made.version
            else:
                self._client.set_model_version_tag(self.model, found, "gate", gate)
            self._theirs[version.number] = str(found)
            return str(found)

    def alias(self, name: str) -> int | None:
        """Our number of the version that an alias points to, None where it points to none."""
        with self._boundary(f"reading the alias {name}"):
            try:
                found = self._client.get_model_version_by_alias(self.model, name)
            except RestException as fault:
                if fault.error_code in NOT_FOUND:
                    return None
                raise
            return self._number(found)

    def aliases(self) -> dict[str, int]:
        """All aliases of the model, each with our number."""
        with self._boundary("reading the aliases"):
            try:
                names = self._client.get_registered_model(self.model).aliases
            except RestException as fault:
                if fault.error_code in NOT_FOUND:
                    return {}
                raise
        found = {name: self.alias(name) for name in names}
        return {name: number for name, number in found.items() if number is not None}

    def set_alias(self, name: str, number: int) -> None:
        """Point an alias at a version. ValueError where MLflow does not have that version."""
        with self._boundary(f"setting the alias {name}"):
            self._client.set_registered_model_alias(self.model, name, self._version_of(number))

    def delete_alias(self, name: str) -> None:
        """Take an alias away; nothing happens where there is none."""
        with self._boundary(f"deleting the alias {name}"):
            try:
                self._client.delete_registered_model_alias(self.model, name)
            except RestException as fault:
                if fault.error_code not in NOT_FOUND:
                    raise

    def tag(self, number: int, key: str, value: str) -> None:
        """Set a tag of a version."""
        with self._boundary(f"tagging version {number}"):
            self._client.set_model_version_tag(self.model, self._version_of(number), key, value)

    def tags(self, number: int) -> dict[str, str]:
        """The tags of a version."""
        with self._boundary(f"reading the tags of version {number}"):
            return dict(self._client.get_model_version(self.model, self._version_of(number)).tags)

    # inside

    def _ensure_model(self) -> None:
        if self._ready:
            return
        try:
            self._client.create_registered_model(
                self.model, description="Versions learned while serving. The tag `number` is the version's own number."
            )
        except RestException as fault:
            if fault.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        self._ready = True

    def _find(self, version: Version) -> str | None:
        found = self._client.search_model_versions(f"name = '{self.model}' and source_path = '{version.source}'")
        return str(found[0].version) if found else None

    def _version_of(self, number: int) -> str:
        if number not in self._theirs:
            found = self._client.search_model_versions(f"name = '{self.model}' and tags.number = '{number}'")
            if not found:
                raise ValueError(f"MLflow at {self.uri} has no version {number} of {self.model}: register it first")
            self._theirs[number] = str(found[0].version)
        return self._theirs[number]

    def _number(self, found: ModelVersion) -> int:
        number = found.tags.get("number")
        if number is None:
            raise ValueError(
                f"MLflow's version {found.version} of {self.model} was not registered by us (it has no tag `number`): "
                "point the alias at one that was"
            )
        self._theirs[int(number)] = str(found.version)
        return int(number)

    def _ensure_run(self, version: Version) -> str:
        """The run that holds a version's metrics, so that MLflow's page compares and charts them."""
        experiment = self._client.get_experiment_by_name(self.model)
        try:
            place = experiment.experiment_id if experiment else self._client.create_experiment(self.model)
        except RestException as fault:  # another process made it between the two calls
            if fault.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            place = self._client.get_experiment_by_name(self.model).experiment_id
        found = self._client.search_runs([place], f"tags.update_id = '{version.update_id}'", max_results=1)
        if found:
            return found[0].info.run_id
        began = int(version.created_at * 1000)
        tags = {"update_id": version.update_id, "number": str(version.number)}
        run = self._client.create_run(place, start_time=began, tags=tags, run_name=f"v{version.number}")
        metrics = [
            Metric(name, float(value), began, version.number) for name, value in _numbers(version.metrics).items()
        ]
        params = [Param("parent", str(version.parent)), Param("samples", str(len(version.sample_ids)))]
        self._client.log_batch(run.info.run_id, metrics=metrics, params=params, tags=[RunTag("source", version.source)])
        self._client.set_terminated(run.info.run_id)
        return run.info.run_id

    @contextlib.contextmanager
    def _boundary(self, doing: str) -> Iterator[None]:
        """The boundary to MLflow: what keeps it from answering gets our name."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                yield
        except RestException as fault:
            if fault.get_http_status_code() < 500:
                raise
            raise RegistryDown(self._down(doing, str(fault))) from fault
        except (MlflowException, OSError) as fault:
            raise RegistryDown(self._down(doing, str(fault))) from fault

    def _down(self, doing: str, why: str) -> str:
        return (
            f"MLflow at {self.uri} does not answer while {doing} ({why[:300]}): look whether it runs "
            "(`clawrl status`); serving goes on with the version it has"
        )


def _tags(version: Version, gate: str) -> dict[str, str]:
    return {
        "number": str(version.number),
        "parent": "none" if version.parent is None else str(version.parent),
        "samples": str(len(version.sample_ids)),
        "update_id": version.update_id,
        "gate": gate,
    }


def _description(version: Version, gate: str) -> str:
    if version.parent is None:
        return f"Version {version.number}: the base weights. Gate: {gate}."
    count = len(version.sample_ids)
    return f"Version {version.number}: learned from {count} samples on top of version {version.parent}. Gate: {gate}."


def _numbers(metrics: Any) -> dict[str, float]:
    return {
        name: value
        for name, value in (metrics or {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
