"""Credentials and endpoints of clients of other libraries, as `storage_options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

_SCHEMES = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl", "azure", "wasbs"), "az"),
    **dict.fromkeys(("http", "https"), "https"),
}
_TAKEN = {
    "s3": {
        "anon", "key", "secret", "token", "endpoint_url", "profile", "region", "region_name",
        "requester_pays",
    },
    "gs": {"anon", "token", "endpoint_url", "requester_pays"},
    "az": {
        "anon", "account_name", "account_key", "sas_token", "endpoint_url", "tenant_id", "client_id",
        "client_secret",
    },
    "https": {"headers"},
}  # fmt: skip
"""Options of fsspec's file systems that the reader understands as they are."""
_REMEDY = {
    "s3": '"key", "secret" and "token", "profile", or {"anon": True}',
    "gs": '"token", a file of credentials or what is in one, or {"anon": True}',
    "az": '"account_name" with "account_key" or "sas_token", or {"anon": True}',
    "https": '"headers", such as {"headers": {"authorization": "Bearer ..."}}',
}
_OF_OTHER_PURPOSE = {
    "access", "assume_container_exists", "asynchronous", "batch_size", "block_size", "blocksize",
    "cache_options", "cache_regions", "cache_type", "check_connection", "consistency", "default_block_size",
    "default_cache_type", "default_fill_cache", "default_location", "encoded", "listings_expiry_time", "loop",
    "max_concurrency", "max_concurrent", "max_paths", "project", "simple_links", "size_policy",
    "skip_instance_cache", "use_listings_cache", "use_ssl", "version_aware",
}  # fmt: skip
"""Options of fsspec's file systems that say nothing about where and as whom to ask."""
_OF_RETRIES = ("max_retries", "retry_timeout")
"""What the reader takes of a `retry_config`; it has waiting times of its own."""
_OF_ENVIRONMENT = ("google_default", "cloud")
"""Tokens of gcsfs that mean what the reader looks for itself."""


def scheme_of(protocol: str) -> str | None:
    """The scheme of URLs for a protocol of fsspec; None for what is not read."""
    return _SCHEMES.get(protocol)


def of_fsspec(fs: Any, scheme: str) -> dict[str, Any]:
    """Those of a file system of fsspec.

    Raises:
        ValueError: One is an object, or of a kind that the reader does not have; the error names it.
    """
    return _taken(dict(fs.storage_options), scheme, type(fs).__name__)


def _taken(options: Mapping[str, Any], scheme: str, whose: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or name in _OF_OTHER_PURPOSE or (name == "token" and value in _OF_ENVIRONMENT):
            continue
        if name == "client_kwargs" and isinstance(value, Mapping):
            found |= _taken(value, scheme, whose)
        elif name == "headers" and isinstance(value, Mapping):
            found[name] = dict(value)
        elif name == "verify" and isinstance(value, str):
            found["ca_bundle"] = value
        elif name in _TAKEN[scheme] and _is_plain(name, value):
            found[name] = value
        else:
            _refuse(name, value, scheme, whose)
    return found


def _is_plain(name: str, value: Any) -> bool:
    if name == "token" and isinstance(value, str):
        return value not in ("browser", "cache")
    return isinstance(value, (str, bool, int)) or (name == "token" and isinstance(value, dict))


def of_obstore(store: Any, scheme: str) -> dict[str, Any]:
    """Those of a store of obstore.

    Raises:
        ValueError: They come from a credential provider.
    """
    provider = getattr(store, "credential_provider", None)
    if provider is not None:
        _refuse("credential_provider", provider, scheme, type(store).__name__)
    places = ("bucket", "container_name")
    config = {name: value for name, value in dict(getattr(store, "config", {})).items() if name not in places}
    options = dict(getattr(store, "client_options", None) or {})
    if headers := options.pop("default_headers", None):
        config["headers"] = {_text(header): _text(value) for header, value in dict(headers).items()}
    if options:
        config["client_options"] = options
    retries = dict(getattr(store, "retry_config", None) or {})
    if retries := {name: retries[name] for name in _OF_RETRIES if name in retries}:
        config["retry_config"] = retries
    return config


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _refuse(name: str, value: Any, scheme: str, whose: str) -> NoReturn:
    what = (
        f"a {type(value).__name__}"
        if not isinstance(value, (str, bool, int))
        else "not an option of the reader"
    )
    raise ValueError(
        f"path: {name} of the {whose} is {what} and cannot be taken over; give storage_options with "
        f"{_REMEDY[scheme]}"
    )
