"""Masks secrets in values that are printed or recorded."""

import re
from collections.abc import Sequence

__all__ = ["mask_arguments", "masked"]

_SECRET = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of environment variables with secrets."""
_SECRET_SETTING = re.compile(r"(^|[._-])(token|secret|password|passwd|key|credentials?|auth)$", re.IGNORECASE)
"""Names of settings and options with secrets; rollout.max_tokens is none."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def masked(name: str, value: str) -> str:
    """Value of an environment variable with secrets masked."""
    return "***" if _SECRET.search(name) else _LOGIN.sub("***", value)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command with secrets masked: values of secret settings and options, logins in URLs."""
    found, hide = list[str](), False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = bool(_SECRET_SETTING.search(name))
        if hide:
            found.append("***")
        else:
            found.append(f"{name}=***" if equals and secret else _LOGIN.sub("***", argument))
        hide = not hide and secret and not equals and argument.startswith("-")
    return found
