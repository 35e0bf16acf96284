"""Addresses of tracking stores: which are taken, and how they are written where others read."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from urllib.parse import urlsplit

from quietsum.errors import InvalidParameter

__all__ = ["check_address", "without_secrets"]

log = logging.getLogger("quietsum.runs.tracking.watcher")

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")
_LOGIN = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_SECRET = (
    (re.compile(r"(?<!\S)([^\s:@]*://)?\S*@"), r"\1***@"),
    (re.compile(r"([?&;][^\s?&;=]+=)[^\s&;]*"), r"\1***"),
    (
        re.compile(
            r"([\w-]{0,40}(?:passw|pwd|token|secret|credential|signature|authori[sz]ation|api[_-]?key|access[_-]?key)[\w-]*"
            r"[\"']?\s*[=:]\s*)(?:(?:Basic|Bearer|Digest)\s+)?(?!\*\*\*)\S+",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"\b(Basic|Bearer|Digest)\s+(?!\*\*\*)\S+", re.IGNORECASE), r"\1 ***"),
)


def check_address(uri: str) -> str:
    """``uri``, where it is the address of a store and no password would travel in the clear.

    Without TLS and beyond this machine everybody on the way can read and change what is tracked: that is said.
    """
    scheme = uri.split(":", 1)[0].split("+")[0]
    if not scheme or scheme not in SCHEMES or ":" not in uri:
        remedy = "write https://mlflow.example.org or sqlite:///mlflow.db"
        raise InvalidParameter("mlflow", without_secrets(uri), "is no address of a tracking store", remedy)
    if scheme == "http":
        try:
            parts = urlsplit(uri)
            host, named = parts.hostname or "", bool(parts.username or parts.password)
        except ValueError:
            problem = "is no address of a tracking store"
            raise InvalidParameter(
                "mlflow", without_secrets(uri), problem, "write https://mlflow.example.org"
            ) from None
        if not _here(host):
            if named or any(os.environ.get(name) for name in _LOGIN):
                problem = "would show its password to everybody on the way"
                raise InvalidParameter("mlflow", without_secrets(uri), problem, "use https://")
            log.warning("what is tracked travels to %s in the clear; use https:// beyond this machine", host)
    return uri


def _here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_secrets(text: str) -> str:
    """An address, or a text with addresses in it, without anything that may be a secret.

    Gone are user names and passwords of any characters but spaces, every value of a query, and what follows words
    such as ``password``, ``token`` or ``Bearer``.

    >>> without_secrets("at https://ann:sec/ret@mlflow.example.org/x?sslmode=require&password=geheim")
    'at https://***@mlflow.example.org/x?sslmode=***&password=***'
    >>> without_secrets("Authorization: Bearer abc, api_key='abc'")
    'Authorization: *** api_key=***'
    """
    for pattern, instead in _SECRET:
        text = pattern.sub(instead, text)
    return text
