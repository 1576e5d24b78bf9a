"""The chain of chunk signatures breaks at the first link that is not genuine."""

import hashlib

import pytest

from gateway.auth.signing import SigningKey
from gateway.auth.sigv4_chunks import ChunkSigner
from gateway.config import Secret
from gateway.errors import SignatureDoesNotMatch

# https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHAIN = (
    (b"a" * 65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (b"a" * 1_024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
)


def signer() -> ChunkSigner:
    key = SigningKey(Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"), "20130524", "us-east-1")
    return ChunkSigner(key, "20130524T000000Z", "20130524/us-east-1/s3/aws4_request", SEED)


def test_the_chain_of_aws_verifies_in_order() -> None:
    chain = signer()
    for chunk, signature in CHAIN:
        chain.verify_chunk(hashlib.sha256(chunk).hexdigest(), signature)


def test_a_chunk_left_out_breaks_the_chain() -> None:
    chain = signer()
    with pytest.raises(SignatureDoesNotMatch):
        chain.verify_chunk(hashlib.sha256(CHAIN[1][0]).hexdigest(), CHAIN[1][1])


def test_a_changed_chunk_breaks_the_chain_without_showing_the_right_signature() -> None:
    with pytest.raises(SignatureDoesNotMatch) as caught:
        signer().verify_chunk(hashlib.sha256(b"b" * 65_536).hexdigest(), CHAIN[0][1])
    assert "AWS4-HMAC-SHA256-PAYLOAD\n20130524T000000Z" in caught.value.fields["StringToSign"]


def test_a_trailer_is_not_signed_as_a_chunk_is() -> None:
    with pytest.raises(SignatureDoesNotMatch):
        signer().verify_trailer(hashlib.sha256(CHAIN[0][0]).hexdigest(), CHAIN[0][1])
