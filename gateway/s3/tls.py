"""The certificate handshakes begin with, which can be read again while the node runs."""

import ssl
from pathlib import Path

import structlog

from gateway.config import ConfigError, S3Config

log = structlog.get_logger()


class Certificate:
    """A certificate and its key, from two files. ConfigError where they cannot be used."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self.context = _load(cert, key)

    def reload(self) -> bool:
        """Reads both files again. Handshakes that begin from now on get what they hold; where
        they cannot be used, what was read before stays, and the log says why."""
        try:
            # A context of its own: one into which half a pair was read could serve neither.
            self.context = _load(self._cert, self._key)
        except ConfigError as error:
            log.error("certificate not reloaded", reason=str(error))  # noqa: TRY400
            return False
        log.info("certificate reloaded", cert=str(self._cert))
        return True


def certificate(config: S3Config) -> Certificate | None:
    """The certificate of a configuration that has one."""
    if config.tls_cert_file is None or config.tls_key_file is None:
        return None
    return Certificate(config.tls_cert_file, config.tls_key_file)


def _load(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key under a passphrase is refused: OpenSSL would ask the terminal, and wait.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"s3.tls_cert_file, s3.tls_key_file: {error}") from error
    return context
