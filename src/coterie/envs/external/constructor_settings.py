"""Typed settings of an external environment: the plain parameters of its constructor."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

from pydantic import BaseModel, Field, create_model

from coterie.config.schema import FOREIGN

_NAMED = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}


def typed_keys(base: type[BaseModel], makers: list[Callable[..., Any]], left_out: Collection[str], of: str) -> Any:
    """Extends `base` with a field for each parameter of the first of `makers` that names any, with its default value.

    Settings are unrestricted if the constructor takes arbitrary keywords, or has defaults other than numbers and
    strings.

    Args:
        left_out: Parameters that are not settings.
        of: Owner of the parameters, used in their descriptions.
    """
    found: list[inspect.Parameter] = []
    free = True
    for maker in makers:
        try:
            parameters = list(inspect.signature(maker).parameters.values())
        except (TypeError, ValueError):  # compiled functions may have no signature
            continue
        found = [parameter for parameter in parameters if parameter.kind in _NAMED and parameter.name not in left_out]
        if found or not parameters:
            free = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
            break
    fields: dict[str, Any] = {}
    for parameter in found:
        key, default = parameter.name, parameter.default
        if key in base.model_fields:
            continue
        if not _plain(default) or hasattr(BaseModel, key) or key.startswith("_"):
            free = True  # accepted but not listed
        else:
            fields[key] = (_kind(default), Field(default, description=f"`{key}` of {of}.", json_schema_extra=FOREIGN))
    model: Any = create_model(base.__name__, __base__=base, **fields)
    if free:
        model.model_config["extra"] = "allow"
        model.model_rebuild(force=True)
    return model


def _plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def _kind(default: Any) -> Any:
    """Type of a setting, from its default value."""
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return float if isinstance(default, float) else int | float  # 10 may mean 10.0
    return tuple[Any, ...] if isinstance(default, tuple) else Any
