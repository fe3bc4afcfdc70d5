"""What may go with a message: the one reader of attachments for REST, WebSockets and JSON-RPC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from treadle.dialects.request_content import read_inline_data
from treadle.errors import BadInput
from treadle.messages import FilePart, ImagePart, Part, TextPart
from treadle.server.problems import build_field_error
from treadle.server.service import LenientBody, StrictBody

MAX_ADDRESS = 20_000_000  # a data: address holds the whole image


class ImageAddress(LenientBody):
    """The address of an image, as OpenAI's clients write it."""

    url: str = Field(max_length=MAX_ADDRESS)


class Attachment(StrictBody):
    """An image, a file or a text that goes with a message.

    `data` is base64. An image may have a `url` instead, and a text its `text`. Without a `type`, an address or an
    image's `media_type` makes it an image, and everything else is a file.
    """

    type: Literal["", "image", "image_url", "file", "text"] = ""
    name: str = Field("", max_length=500)
    media_type: str = Field("", max_length=200)
    data: str = ""
    url: str = Field("", max_length=MAX_ADDRESS)
    image_url: ImageAddress | str | None = None
    text: str = ""

    def build_part(self, field: str) -> Part:
        """Build the part of the message. `field` is the name of this attachment in errors."""
        named = self.image_url.url if isinstance(self.image_url, ImageAddress) else self.image_url
        url, encoded = named or self.url, self.data
        if self.type == "text" and self.text:
            return TextPart(self.text, file=self.name or "text")
        if url.startswith("data:"):
            url, encoded = "", url
        is_image = self.type.startswith("image") or self.media_type.startswith("image/")
        is_image = is_image or bool(not self.type and (named or self.url))
        if url and not is_image:
            raise build_field_error(f"{field}.url", "only an image may have an address; send a file as base64 `data`")
        if url and not url.startswith(("https://", "http://")):
            raise build_field_error(f"{field}.url", "must be an http or https address, or a data: address")
        if not url and not encoded:
            needed = "`data` or a `url`" if is_image else "`data` or `text`" if self.type == "text" else "`data`"
            raise build_field_error(f"{field}.data", f"is missing: this attachment needs {needed}")
        try:
            media_type, data = read_inline_data(encoded, "data")
        except BadInput:
            raise build_field_error(f"{field}.data", "must be base64") from None
        media_type = self.media_type or media_type
        if is_image:
            return ImagePart(
                data=data, media_type=media_type if media_type.startswith("image/") else "image/png", url=url
            )
        default = "text/plain" if self.type == "text" else "application/octet-stream"
        return FilePart(name=self.name or "file", data=data, media_type=media_type or default)
