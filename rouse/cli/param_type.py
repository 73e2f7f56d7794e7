# SPDX-License-Identifier: MIT
"""click.ParamType with the type of its values, which older versions of click do not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        def __class_getitem__(cls, _: Any) -> type[ParamType]:
            return cls
