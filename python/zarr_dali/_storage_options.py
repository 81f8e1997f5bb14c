"""`storage_options` as the operator takes them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any


def as_json(options: Mapping[str, Any]) -> str:
    """The options as JSON; durations, such as those of obstore's `retry_config`, in milliseconds."""
    return json.dumps(dict(options), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return f"{round(value.total_seconds() * 1000)}ms"
    raise TypeError(f"storage_options hold a {type(value).__name__}, which is no value of JSON")
