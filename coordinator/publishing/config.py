"""How a WordPress site is named in the settings."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from shared.errors import ConfigurationError

_OWN_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


class WordPressSite(BaseModel):
    """A site where a source's results are published, and as whom."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str  # of its home page; https:// unless it is this machine's, or allow_http
    user: str = Field(min_length=1, pattern=r"^[^:\x00-\x1f]+$")  # an editor; whoever writes only own posts can't
    app_password: SecretStr | None = None  # an application password of this user, or ...
    app_password_file: Path | None = None  # ... where it stands
    post_type: str = Field(default="posts", pattern=r"^[a-z0-9_-]{1,40}$")  # "pages", or a type's name in the REST API
    status: Literal["publish", "draft", "pending", "private"] | None = None  # of the post once its text is there
    featured: bool = True  # the first image becomes the post's featured image
    replace: bool | None = None  # what others put there; None = yes, but not if the plugin asked for what was not there
    allow_http: bool = False  # the password then goes over the network in the clear

    @model_validator(mode="after")
    def _fits(self) -> Self:
        parts = urlsplit(self.url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or "@" in self.url
        ):
            msg = f"url: {self.url!r} is not https://HOST or https://HOST/PATH"
            raise ValueError(msg)
        if parts.scheme == "http" and parts.hostname not in _OWN_MACHINE and not self.allow_http:
            msg = f"url: {self.url!r} is not https://, and allow_http is off"
            raise ValueError(msg)
        if (self.app_password is None) == (self.app_password_file is None):
            msg = "give either app_password or app_password_file"
            raise ValueError(msg)
        return self

    def password(self) -> str:
        """Return the application password; ConfigurationError if its file can't be read."""
        if self.app_password is not None:
            return self.app_password.get_secret_value()
        try:
            return Path(self.app_password_file or "").read_text().strip()
        except (OSError, ValueError) as error:
            why = (
                "not UTF-8" if isinstance(error, UnicodeError) else error
            )  # whose own words tell a part of the password
            msg = f"app_password_file of {self.url}: {why}"
            raise ConfigurationError(msg) from error
