"""The object store: an S3 bucket and a prefix in it, with the conditional writes that commits and leases stand on.

What it does: get, put (if absent, if unchanged), list, delete, files up and down, and the options with which Polars
reads the same place.
What it leaves out: what lies there (`storage/versions.py`, `storage/dataset.py`); starting a store of one's own
(`infra/services.py`).

Every call is tried again a bounded number of times with growing pauses. `StoreDown` means that the store did not
answer after that; its text says where and what to do.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

NOT_THERE = ("404", "NoSuchKey", "NotFound", "NoSuchBucket")
CONDITION = ("412", "PreconditionFailed", "409", "ConditionalRequestConflict")
REFUSED = ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")


class StoreDown(ConnectionError):
    """The object store does not answer, or refuses the keys. The text says where, and what to do."""


class NotThere(KeyError):
    """There is no such object."""

    def __str__(self) -> str:
        return str(self.args[0])


class AlreadyThere(ValueError):
    """The object exists, and was to be written only if it did not."""


class Changed(ValueError):
    """The object is another one than it was when it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where the object store is."""

    url: str  # s3://bucket/prefix
    endpoint: str | None = None  # http://127.0.0.1:8333; None for Amazon's own
    access_key: str | None = None  # None: what boto3 finds (environment, profile, role)
    secret_key: str | None = field(default=None, repr=False)
    region: str = "us-east-1"

    def open(self) -> "ObjectStore":
        """The store of these settings. Nothing is sent yet."""
        return ObjectStore(
            self.url,
            endpoint=self.endpoint,
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
        )


class ObjectStore:
    """Objects under one prefix of one bucket. Keys are relative to the prefix. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        region: str = "us-east-1",
        attempts: int = 5,
        timeout_s: float = 20.0,
    ) -> None:
        scheme, _, rest = url.partition("://")
        self.bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not self.bucket:
            raise ValueError(f"object store: {url!r} is no address like s3://bucket/prefix")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._where = endpoint or f"Amazon S3 in {region}"
        self._endpoint, self._keys, self._region = endpoint, (access_key, secret_key), region
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name=region,
            config=Config(
                retries={"mode": "standard", "total_max_attempts": attempts},
                connect_timeout=min(5.0, timeout_s),
                read_timeout=timeout_s,
                max_pool_connections=32,
                s3={"addressing_style": "path"} if endpoint else {},
                # our own hashes are checked; other stores than Amazon's do not all know its checksum trailers
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def url(self, key: str = "") -> str:
        """The full address of a key, as Polars, pyarrow and MLflow take it."""
        return f"s3://{self.bucket}/{self._prefix}{key}"

    def polars_options(self) -> dict[str, str]:
        """`storage_options` for `pl.scan_parquet(store.url(...))`."""
        options = {"aws_region": self._region}
        for name, value in zip(("aws_access_key_id", "aws_secret_access_key"), self._keys, strict=True):
            if value:
                options[name] = value
        if self._endpoint:
            options["aws_endpoint_url"] = self._endpoint
            options["aws_allow_http"] = "true"
        return options

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        """Write one object; its etag. AlreadyThere and Changed say that a condition did not hold."""
        condition = {"IfNoneMatch": "*"} if if_none_match else {"IfMatch": if_match} if if_match else {}
        with self._boundary(f"writing {key}"):
            try:
                return self._client.put_object(Bucket=self.bucket, Key=self._prefix + key, Body=data, **condition)[
                    "ETag"
                ]
            except ClientError as fault:
                code = fault.response["Error"]["Code"]
                if not condition or code not in (*CONDITION, *NOT_THERE):
                    raise
                retried = fault.response["ResponseMetadata"].get("RetryAttempts", 0)
        # A first try whose answer was lost may be the very object that the second try met
        if retried:
            with contextlib.suppress(NotThere):
                there, etag = self.get_with_etag(key)
                if there == data:
                    return etag
        if if_none_match:
            raise AlreadyThere(f"{self.url(key)} exists already")
        raise Changed(f"{self.url(key)} was changed by somebody else")

    def get(self, key: str) -> bytes:
        """The bytes of one object. NotThere where there is none."""
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """The bytes of one object and the etag for `put(if_match=...)`."""
        with self._boundary(f"reading {key}"):
            answer = self._client.get_object(Bucket=self.bucket, Key=self._prefix + key)
            return answer["Body"].read(), answer["ETag"]

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """The bytes of an object, None where there is none."""
        try:
            with self._boundary(f"looking at {key}"):
                return self._client.head_object(Bucket=self.bucket, Key=self._prefix + key)["ContentLength"]
        except NotThere:
            return None

    def list(self, prefix: str = "", limit: int | None = None) -> list[str]:
        """The keys under a prefix, ascending."""
        keys: list[str] = []
        with self._boundary(f"listing {prefix}"):
            for page in self._pages(prefix, limit):
                keys += [item["Key"].removeprefix(self._prefix) for item in page.get("Contents", ())]
                if limit is not None and len(keys) >= limit:
                    break
        return keys[:limit]

    def _pages(self, prefix: str, limit: int | None) -> Iterator[dict]:
        pages = self._client.get_paginator("list_objects_v2")
        size = {"PageSize": limit} if limit and limit < 1000 else {}
        return iter(pages.paginate(Bucket=self.bucket, Prefix=self._prefix + prefix, PaginationConfig=size))

    def delete(self, key: str) -> None:
        """Remove one object; no error where there is none."""
        with self._boundary(f"deleting {key}"), contextlib.suppress(NotThere):
            self._client.delete_object(Bucket=self.bucket, Key=self._prefix + key)

    def upload_file(self, path: Path, key: str) -> None:
        """A file of any size, in parts."""
        with self._boundary(f"uploading {path.name}"):
            self._client.upload_file(str(path), self.bucket, self._prefix + key, Config=_PARTS)

    def download_file(self, key: str, path: Path) -> None:
        """An object of any size, in parts."""
        with self._boundary(f"downloading {key}"):
            self._client.download_file(self.bucket, self._prefix + key, str(path), Config=_PARTS)

    @contextlib.contextmanager
    def _boundary(self, doing: str) -> Iterator[None]:
        """The boundary to the network: its faults get our names."""
        try:
            yield
        except ClientError as fault:
            code = fault.response["Error"]["Code"]
            status = fault.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            if code in NOT_THERE:
                raise NotThere(f"{doing}: no such object or bucket under {self.url()} at {self._where}") from fault
            if code in REFUSED:
                raise StoreDown(
                    f"object store: {self._where} refuses {doing} in {self.url()} ({code}): look at access_key, "
                    "secret_key and the bucket's policy"
                ) from fault
            if status < 500:
                raise
            raise StoreDown(self._down(doing, f"it answers {status} {code}")) from fault
        except (BotoCoreError, Boto3Error, OSError) as fault:
            if isinstance(fault, FileNotFoundError | PermissionError | StoreDown):
                raise
            raise StoreDown(self._down(doing, str(fault))) from fault

    def _down(self, doing: str, why: str) -> str:
        return (
            f"object store: {self._where} does not answer while {doing} ({why[:300]}): look whether it runs "
            "(`clawrl status`) and whether its disk has space; what was under way can be done again"
        )


_PARTS = TransferConfig(multipart_threshold=32 << 20, multipart_chunksize=16 << 20, max_concurrency=4)
