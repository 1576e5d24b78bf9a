"""Where S3 tools find keys, region and endpoint: arguments, `AWS_*` variables, profile files.

What stands in a variable or a file is read here. What has to be fetched first (roles, single
sign-on, processes, the metadata of a machine) is left to botocore, which is imported only then:
it costs every worker process 100 ms and more.
Source: https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html
"""

import configparser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from feedrack.errors import NoCredentials, WrongAddress

_FETCHED = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "web_identity_token_file",
    "login_session",
)


class Credentials(NamedTuple):
    """An access key with its secret; `token` for temporary ones. Shows no secret when printed."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"


Ask = Callable[[], Credentials]


class Profile:
    """The profile that counts in this process. WrongAddress where one is named that is nowhere.

    `name` None: `AWS_PROFILE`, else the default one."""

    def __init__(self, name: str | None, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._given = name
        chosen = name or environ.get("AWS_PROFILE")
        self.name = chosen or "default"
        config = _read(environ.get("AWS_CONFIG_FILE", "~/.aws/config"))
        keys = _read(environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
        section = self.name if self.name == "default" else f"profile {self.name}"
        if chosen and section not in config and self.name not in keys:
            raise WrongAddress(f"there is no profile {self.name!r}")
        self._settings = {**config.get(section, {}), **keys.get(self.name, {})}
        services = config.get(f"services {self._settings.get('services', '')}", {})
        self._s3 = {**_nested(self._settings.get("s3")), **_nested(services.get("s3"))}

    def region(self) -> str | None:
        """The region that is configured."""
        return self._variable("AWS_REGION", "AWS_DEFAULT_REGION") or self._settings.get("region")

    def endpoint_url(self) -> str | None:
        """The endpoint that is configured for S3."""
        return (
            self._variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
            or self._s3.get("endpoint_url")
            or self._settings.get("endpoint_url")
        )

    def ca_file(self) -> str | None:
        """The certificates to trust instead of the machine's."""
        return self._variable("AWS_CA_BUNDLE") or self._settings.get("ca_bundle")

    def addressing(self) -> str | None:
        """`path` or `virtual`, where it is configured."""
        return self._s3.get("addressing_style") or None

    def credentials(self) -> Ask:
        """A function that gives the credentials as they are now. NoCredentials where none are."""
        keys = self._environ
        # As boto3 has it: a profile that is named in the call goes before the variables.
        if self._given is None and "AWS_ACCESS_KEY_ID" in keys:
            found = _static(keys, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
            if found is None:
                raise NoCredentials("AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not")
            return lambda: found
        if not any(name in self._settings for name in _FETCHED):
            settled = _static(
                self._settings, "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
            )
            if settled is not None:
                return lambda: settled
        return _fetched(self._given)

    def _variable(self, *names: str) -> str | None:
        return next((found for name in names if (found := self._environ.get(name))), None)


def _static(
    settings: Mapping[str, str], access_key: str, secret_key: str, token: str
) -> Credentials | None:
    key, secret = settings.get(access_key), settings.get(secret_key)
    return Credentials(key, secret, settings.get(token) or None) if key and secret else None


def _fetched(profile: str | None) -> Ask:
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError as error:
        raise NoCredentials(
            "no access key in arguments, AWS_* variables or profile files, and botocore, which "
            "could fetch one, is not installed"
        ) from error
    try:
        found = botocore.session.Session(profile=profile).get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise NoCredentials(f"no credentials: {error}") from error
    if found is None:
        raise NoCredentials("no access key in arguments, AWS_* variables or profile files")

    def ask() -> Credentials:
        try:
            frozen = found.get_frozen_credentials()
        except botocore.exceptions.BotoCoreError as error:
            raise NoCredentials(f"no credentials: {error}") from error
        if not frozen.access_key or not frozen.secret_key:
            raise NoCredentials("the credentials that were found are empty")
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    return ask


def _read(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(Path(path).expanduser().read_text("utf-8"))
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise WrongAddress(f"{path} is no profile file") from error
    return {" ".join(name.split()): dict(parser[name]) for name in parser.sections()}


def _nested(value: str | None) -> dict[str, str]:
    """Settings that are indented under one name."""
    pairs = (line.partition("=") for line in (value or "").splitlines())
    return {name.strip(): setting.strip() for name, found, setting in pairs if found}
