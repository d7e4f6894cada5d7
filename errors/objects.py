"""What is refused of objects that may be longer than a block, of uploads in parts, and of conditional requests."""

import errno as _errno

from mooncask.errors.base import MooncaskError


class PreconditionFailed(MooncaskError):
    code, http_status, errno, exit_code = "PreconditionFailed", 412, _errno.ECANCELED, 65

    def __init__(self, key: str, condition: str, found: str) -> None:
        super().__init__(f"object {key}: {condition} does not hold: {found}; nothing has changed")
        self.key, self.condition, self.found = key, condition, found


class ObjectInParts(MooncaskError):
    code, http_status, errno, exit_code = "ObjectInParts", 400, _errno.EFBIG, 65

    def __init__(self, namespace: str, key: str, size_bytes: int) -> None:
        super().__init__(
            f"object {key} of namespace {namespace} has {size_bytes} bytes and is stored in parts, which cannot be leased "
            'as one block; read it over HTTP, or with "mooncask get"'
        )
        self.namespace, self.key, self.size_bytes = namespace, key, size_bytes


class ObjectTooLarge(MooncaskError):
    code, http_status, errno, exit_code = "EntityTooLarge", 400, _errno.EFBIG, 65

    def __init__(self, size_bytes: int, size_bytes_max: int, how: str) -> None:
        super().__init__(f"{size_bytes} bytes {how}; at most {size_bytes_max} are allowed")
        self.size_bytes, self.size_bytes_max, self.how = size_bytes, size_bytes_max, how


class MetadataTooLarge(MooncaskError):
    code, http_status, errno, exit_code = "MetadataTooLarge", 400, _errno.E2BIG, 65

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(f"metadata of {size_bytes} bytes; at most {size_bytes_max} are kept with an object")
        self.size_bytes, self.size_bytes_max = size_bytes, size_bytes_max


class NoSuchUpload(MooncaskError):
    code, http_status, errno, exit_code = "NoSuchUpload", 404, _errno.ENOENT, 3

    def __init__(self, upload: str) -> None:
        super().__init__(f"no upload {upload}: it was completed, aborted or is older than a day; begin another")
        self.upload = upload


class InvalidPart(MooncaskError):
    code, http_status, errno, exit_code = "InvalidPart", 400, _errno.EINVAL, 65

    def __init__(self, upload: str, part: int, why: str) -> None:
        super().__init__(f"part {part} of upload {upload}: {why}")
        self.upload, self.part, self.why = upload, part, why


class InvalidPartOrder(MooncaskError):
    code, http_status, errno, exit_code = "InvalidPartOrder", 400, _errno.EINVAL, 65

    def __init__(self, upload: str) -> None:
        super().__init__(f"upload {upload}: the parts must be listed by ascending number, each once")
        self.upload = upload


class PartTooSmall(MooncaskError):
    code, http_status, errno, exit_code = "EntityTooSmall", 400, _errno.EINVAL, 65

    def __init__(self, part: int, size_bytes: int, size_bytes_min: int) -> None:
        super().__init__(f"part {part} has {size_bytes} bytes; all but the last have at least {size_bytes_min}")
        self.part, self.size_bytes, self.size_bytes_min = part, size_bytes, size_bytes_min
