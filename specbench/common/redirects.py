"""Redirects: none is followed by what sends a key. No torch."""

from __future__ import annotations

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows nothing: the key would go along to wherever it points, and a POST would become a GET."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None
