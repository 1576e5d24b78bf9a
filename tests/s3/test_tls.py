"""A certificate read again serves the next handshake; a bad one changes nothing."""

from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from gateway.config import ConfigError
from gateway.s3.tls import Certificate


def write(folder: Path, authority: trustme.CA, *, key_of: trustme.LeafCert | None = None) -> None:
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    (key_of or issued).private_key_pem.write_to_path(folder / "key.pem")


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def test_what_the_files_hold_now_serves_from_now_on(tmp_path: Path, authority: trustme.CA) -> None:
    write(tmp_path, authority)
    certificate = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    before = certificate.context
    write(tmp_path, authority)
    assert certificate.reload()
    assert certificate.context is not before


@pytest.mark.parametrize("fault", ["another's key", "no certificate", "no file"])
def test_a_pair_that_cannot_be_used_is_logged_and_the_old_one_stays(
    tmp_path: Path, authority: trustme.CA, fault: str
) -> None:
    write(tmp_path, authority)
    certificate = Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    before = certificate.context
    match fault:
        case "another's key":
            write(tmp_path, authority, key_of=authority.issue_cert("127.0.0.1"))
        case "no certificate":
            (tmp_path / "cert.pem").write_text("nothing")
        case _:
            (tmp_path / "key.pem").unlink()
    with capture_logs() as logs:
        assert not certificate.reload()
    assert certificate.context is before
    assert [(line["log_level"], line["event"]) for line in logs] == [
        ("error", "certificate not reloaded")
    ]
    with pytest.raises(ConfigError, match=r"s3\.tls_cert_file, s3\.tls_key_file"):
        Certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
