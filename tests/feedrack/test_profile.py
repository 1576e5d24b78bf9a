"""Keys, region and endpoint are found where every S3 tool finds them."""

import json
from pathlib import Path

import boto3
import pytest

from feedrack.dataset import open_dataset
from feedrack.endpoint import Access, find_endpoint, parse_address
from feedrack.errors import NoCredentials, WrongAddress
from feedrack.profile import Credentials, Profile

CONFIG = """
[default]
region = eu-north-1
[profile work]
region = eu-central-1
services = lab
s3 =
  addressing_style = path
[profile fetched]
credential_process = cat {folder}/fetched.json
[services lab]
s3 =
  endpoint_url = http://lab:9000
"""
KEYS = """
[default]
aws_access_key_id = D
aws_secret_access_key = DS
[work]
aws_access_key_id = W
aws_secret_access_key = WS
aws_session_token = WT
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Profile files and nothing else; set for botocore too."""
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    fetched = {"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "S"}
    (tmp_path / "fetched.json").write_text(json.dumps(fetched))
    (tmp_path / "credentials").write_text(KEYS)
    found = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        (None, {}),
        ("work", {}),
        (None, {"AWS_PROFILE": "work"}),
        (None, {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "ES"}),
        ("work", {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "ES"}),
        (None, {"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "ES"}),
        ("fetched", {}),
        (None, {"AWS_DEFAULT_REGION": "sa-east-1"}),
    ],
)
def test_what_is_found_is_what_boto3_finds(
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    variables: dict[str, str],
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    profile = Profile(name, environ | variables)
    session = boto3.Session(profile_name=name)
    theirs = session.get_credentials()
    assert theirs is not None
    frozen = theirs.get_frozen_credentials()
    assert profile.credentials()() == (frozen.access_key, frozen.secret_key, frozen.token)
    assert profile.region() == session.region_name


def test_the_endpoint_may_stand_in_the_profile(environ: dict[str, str]) -> None:
    found = find_endpoint("train", Access(), Profile("work", environ))
    assert (found.host, found.port, found.region) == ("lab", 9000, "eu-central-1")
    named = find_endpoint("train", Access(endpoint_url="http://other:1"), Profile("work", environ))
    assert named.host == "other"
    variable = Profile("work", environ | {"AWS_ENDPOINT_URL": "http://third:1"})
    assert find_endpoint("train", Access(), variable).host == "third"


def test_a_profile_that_is_nowhere_is_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(WrongAddress, match="nobody"):
        Profile("nobody", environ)


def test_no_keys_at_all_are_said_so(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(NoCredentials):
        Profile(
            None, environ | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
        ).credentials()
    with pytest.raises(NoCredentials, match="AWS_SECRET_ACCESS_KEY"):
        Profile(None, {"AWS_ACCESS_KEY_ID": "x"}).credentials()


def test_a_secret_does_not_show() -> None:
    credentials = Credentials("demo", "very-secret", "very-token")
    access = Access(credentials=credentials)
    for shown in (repr(credentials), str(credentials), repr(access), f"{access}"):
        assert "very" not in shown


@pytest.mark.parametrize(
    "url", ["bucket/key", "s3:/bucket", "s3://", "http://b/k", "s3://-x", "s3://a b/"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(WrongAddress):
        parse_address(url)


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://a:b@c", "http://x:y"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(WrongAddress) as caught:
        find_endpoint("train", Access(endpoint_url=url), Profile(None, {}))
    assert "a:b" not in str(caught.value)


def test_half_a_key_is_refused() -> None:
    with pytest.raises(WrongAddress, match="together"):
        open_dataset("s3://train/", access_key="demo")
