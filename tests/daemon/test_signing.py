"""Signatures as pure text: AWS's published examples, botocore as the oracle, and a refusal by S3's own code for each fault."""

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from mooncask.daemon.http.callers.authentication import KEYS_MAX, SignatureCheck, SigningKeys
from mooncask.daemon.http.callers.caller import Caller
from mooncask.daemon.http.callers.credentials import Credential
from mooncask.daemon.http.callers.signature import Claim, RequestHead, Scope, claim_of
from mooncask.daemon.http.refused import Refused

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EMPTY = hashlib.sha256(b"").hexdigest()
CALLER = Caller("default", KEY)
HOST = "127.0.0.1:9470"


def checker(now: float, region: str = "us-east-1", secret: str = SECRET) -> SignatureCheck:
    return SignatureCheck({KEY: Credential(secret, CALLER)}, region, lambda: now)


def moment(text: str) -> float:
    return datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def code(head: RequestHead, now: float, **named: str) -> str:
    """S3's code for this request, or "ok"."""
    try:
        claim = claim_of(head)
        if claim is None:
            return "unsigned"
        checker(now, **named).check(head, claim)
    except Refused as error:
        return error.code
    return "ok"


# --- the examples that AWS published ---------------------------------------------------------------------------------

NOON = moment("20130524T000000Z")
AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={KEY}/20130524/us-east-1/s3/aws4_request,SignedHeaders={{}},Signature={{}}"
)


def published(method: str, target: str, signed: str, signature: str, **headers: str) -> RequestHead:
    found = CIMultiDict({"Host": "examplebucket.s3.amazonaws.com"})
    found.update({name.replace("_", "-"): value for name, value in headers.items()})
    found["x-amz-date"] = "20130524T000000Z"
    found["Authorization"] = AUTHORIZATION.format(signed, signature)
    return RequestHead(method, target, found)


@pytest.mark.parametrize(
    "head",
    [
        published(
            "GET",
            "/test.txt",
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            Range="bytes=0-9",
            x_amz_content_sha256=EMPTY,
        ),
        published(
            "PUT",
            "/test%24file.text",
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            Date="Fri, 24 May 2013 00:00:00 GMT",
            x_amz_storage_class="REDUCED_REDUNDANCY",
            x_amz_content_sha256="44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        ),
        published(
            "GET",
            "/?lifecycle",
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            x_amz_content_sha256=EMPTY,
        ),
        published(
            "GET",
            "/?max-keys=2&prefix=J",
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            x_amz_content_sha256=EMPTY,
        ),
        published(
            "PUT",
            "/examplebucket/chunkObject.txt",
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
            "x-amz-storage-class",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            Host="s3.amazonaws.com",
            x_amz_storage_class="REDUCED_REDUNDANCY",
            Content_Encoding="aws-chunked",
            x_amz_decoded_content_length="66560",
            Content_Length="66824",
            x_amz_content_sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        ),
    ],
    ids=["get", "put", "lifecycle", "list", "chunked"],
)
def test_requests_that_aws_signed_for_its_documentation_are_right(head: RequestHead) -> None:
    assert code(head, NOON) == "ok"
    assert code(head, NOON, secret=SECRET[:-1] + "Z") == "SignatureDoesNotMatch"


PRESIGNED = (
    "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


def presigned(change: Callable[[str], str] = lambda target: target, **headers: str) -> RequestHead:
    found = CIMultiDict({"Host": "examplebucket.s3.amazonaws.com"})
    found.update({name.replace("_", "-"): value for name, value in headers.items()})
    return RequestHead("GET", change(PRESIGNED), found)


def test_a_request_that_aws_presigned_for_its_documentation_is_right_for_a_day() -> None:
    assert code(presigned(), NOON) == code(presigned(), NOON + 86400) == "ok"
    assert code(presigned(), NOON + 86401) == "AccessDenied"
    assert code(presigned(), NOON - 901) == "AccessDenied"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("=86400", "=604801", "AuthorizationQueryParametersError"),
        ("=86400", "=0", "AuthorizationQueryParametersError"),
        ("=86400", "=-5", "AuthorizationQueryParametersError"),
        ("=86400", "=soon", "AuthorizationQueryParametersError"),
        ("=86400", "=" + "0" * 9 + "9" * 9, "AuthorizationQueryParametersError"),
        ("&X-Amz-Expires=86400", "", "AuthorizationQueryParametersError"),
        ("=86400", "=86401", "SignatureDoesNotMatch"),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=yesterday", "AuthorizationQueryParametersError"),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=20130525T000000Z", "AuthorizationQueryParametersError"),
        ("X-Amz-Date=20130524T000000Z", "X-Amz-Date=20131324T000000Z", "AuthorizationQueryParametersError"),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", "AuthorizationQueryParametersError"),
        ("us-east-1", "mars-1", "AuthorizationQueryParametersError"),
        ("%2Fs3%2F", "%2Fec2%2F", "AuthorizationQueryParametersError"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=date", "AccessDenied"),
        ("aeeed9bb", "zzzzzzzz", "AuthorizationQueryParametersError"),
        ("aeeed9bb", "beeed9bb", "SignatureDoesNotMatch"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7NOBODY0", "InvalidAccessKeyId"),
        ("/test.txt", "/test.txT", "SignatureDoesNotMatch"),
        ("?X-Amz-Algorithm", "?x=1&X-Amz-Algorithm", "SignatureDoesNotMatch"),
        ("?X-Amz-Algorithm", "?AWSAccessKeyId=a&X-Amz-Algorithm", "InvalidRequest"),
        ("&X-Amz-Expires", "&X-Amz-Security-Token=t&X-Amz-Expires", "InvalidToken"),
    ],
)
def test_a_presigned_request_that_was_changed_is_refused(old: str, new: str, wanted: str) -> None:
    assert old in PRESIGNED
    assert code(presigned(lambda target: target.replace(old, new)), NOON) == wanted


def test_a_presigned_request_covers_what_the_amz_headers_beside_it_say() -> None:
    assert code(presigned(x_amz_meta_colour="red"), NOON) == "AccessDenied"
    assert code(presigned(Authorization="AWS4-HMAC-SHA256 x"), NOON) == "InvalidArgument"


# --- botocore as the oracle ------------------------------------------------------------------------------------------

NOW = datetime.now(UTC).timestamp()
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)


def signed_by_botocore(
    method: str = "GET",
    path: str = "/bucket/key",
    query: str = "",
    headers: dict[str, str] | None = None,
    region: str = "us-east-1",
    presign: bool = False,
) -> RequestHead:
    url = f"http://{HOST}{path}{'?' + query if query else ''}"
    request = AWSRequest(method, url, headers={"Host": HOST, **(headers or {})}, data=b"")
    credentials = Credentials(KEY, SECRET)
    if presign:
        S3SigV4QueryAuth(credentials, "s3", region, 60).add_auth(request)
    else:
        S3SigV4Auth(credentials, "s3", region).add_auth(request)
    target = request.url.removeprefix(f"http://{HOST}")
    return RequestHead(method, target, CIMultiDict(request.headers.items()))


@given(
    st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST"]),
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=4),
    st.dictionaries(
        st.from_regex("x-amz-meta-[a-z]{1,5}", fullmatch=True), st.text("ab  c/+,", max_size=9), max_size=3
    ),
    st.booleans(),
)
def test_what_botocore_signs_is_right_and_what_is_changed_is_not(
    method: str, key: str, parameters: list[tuple[str, str]], headers: dict[str, str], presign: bool
) -> None:
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in parameters)
    head = signed_by_botocore(method, f"/bucket/{quote(key, safe='/~')}", query, headers, presign=presign)
    assert code(head, NOW) == "ok"
    path, mark, rest = head.target.partition("?")
    assert code(RequestHead("PATCH", head.target, head.headers), NOW) == "SignatureDoesNotMatch"
    assert code(RequestHead(method, f"{path}x{mark}{rest}", head.headers), NOW) == "SignatureDoesNotMatch"
    other_host = CIMultiDict(head.headers)
    other_host["Host"] = "example.org"
    assert code(RequestHead(method, head.target, other_host), NOW) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        ("/bucket/a%20b%2Bc", "/bucket/a%20b+c"),
        ("/bucket/%28x%29%21", "/bucket/(x)!"),
        ("/bucket/%C3%A9", "/bucket/%c3%a9"),
        ("/bucket/~x", "/bucket/%7Ex"),
        ("/bucket?prefix=a%2Fb", "/bucket?prefix=a/b"),
        ("/bucket?prefix=a%20b", "/bucket?prefix=a+b"),
        ("/bucket?a%20b=1", "/bucket?a+b=1"),
    ],
)
def test_a_target_that_an_http_library_wrote_in_another_way_is_taken(signed: str, sent: str) -> None:
    head = signed_by_botocore(path=signed.partition("?")[0], query=signed.partition("?")[2])
    assert code(RequestHead("GET", sent, head.headers), NOW) == "ok"


@pytest.mark.parametrize(
    ("signed", "sent"),
    [
        ("/bucket/a/b", "/bucket%2Fa/b"),
        ("/bucket/a", "/bucket//a"),
        ("/bucket/a", "/bucket/./a"),
        ("/bucket/a%2Bb", "/bucket/a%20b"),
        ("/bucket?prefix=a%2Bb", "/bucket?prefix=a+b"),
        ("/bucket?prefix=a", "/bucket?prefix=a&prefix=b"),
        ("/bucket/%EF%BF%BD", "/bucket/%FF"),
        ("/bucket/%EF%BF%BD", "/bucket/\udcff"),
    ],
)
def test_a_target_that_means_something_else_is_not_taken(signed: str, sent: str) -> None:
    head = signed_by_botocore(path=signed.partition("?")[0], query=signed.partition("?")[2])
    assert code(RequestHead("GET", signed, head.headers), NOW) == "ok"
    assert code(RequestHead("GET", sent, head.headers), NOW) == "SignatureDoesNotMatch"


# --- refusals --------------------------------------------------------------------------------------------------------


def altered(name: str, change: Callable[[str], str] | None) -> RequestHead:
    """A request signed by botocore, with one header changed afterwards; None takes it away."""
    head = signed_by_botocore(headers={"x-amz-meta-colour": "red"})
    headers = CIMultiDict(head.headers)
    value = headers.popall(name, ["", ""])[0]
    if change is not None:
        headers[name] = change(value)
    return RequestHead(head.method, head.target, headers)


@pytest.mark.parametrize(
    ("name", "change", "wanted"),
    [
        ("Authorization", None, "unsigned"),
        ("Authorization", lambda value: "Basic YTpi", "InvalidRequest"),
        ("Authorization", lambda value: "AWS key:signature", "InvalidRequest"),
        ("Authorization", lambda value: value.split(",")[0], "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace("/s3/", "/ec2/"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace("/s3/aws4", "/s3/aws5"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace("/us-east-1/", "/"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace("/us-east-1/", "/mars-1/"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace(KEY + "/2", KEY + "/1"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace("Signature=", "Signature=z"), "AuthorizationHeaderMalformed"),
        ("Authorization", lambda value: value.replace(KEY, KEY + "X"), "InvalidAccessKeyId"),
        ("Authorization", lambda value: value.replace("=host;", "="), "AccessDenied"),
        ("Authorization", lambda value: value.replace(";x-amz-meta-colour", ""), "AccessDenied"),
        ("Authorization", lambda value: value.replace("=host;", "=host;range;"), "SignatureDoesNotMatch"),
        ("x-amz-content-sha256", None, "MissingSecurityHeader"),
        ("x-amz-content-sha256", lambda value: "UNSIGNED-PAYLOAD", "SignatureDoesNotMatch"),
        ("x-amz-date", None, "AccessDenied"),
        ("x-amz-date", lambda value: "today", "AccessDenied"),
        ("x-amz-date", lambda value: "20010101T000000Z", "AuthorizationHeaderMalformed"),
        ("x-amz-meta-colour", lambda value: "blue", "SignatureDoesNotMatch"),
        ("x-amz-meta-colour", None, "SignatureDoesNotMatch"),
        ("x-amz-meta-size", lambda value: "5", "AccessDenied"),
        ("x-amz-security-token", lambda value: "t", "AccessDenied"),
        ("host", lambda value: "example.org", "SignatureDoesNotMatch"),
    ],
)
def test_a_signed_request_that_was_changed_is_refused_by_s3s_code(
    name: str, change: Callable[[str], str] | None, wanted: str
) -> None:
    assert code(altered(name, change), NOW) == wanted


def test_white_space_around_and_within_a_signed_header_means_nothing() -> None:
    assert code(altered("x-amz-meta-colour", lambda value: f"  {value}\t"), NOW) == "ok"


def test_a_clock_may_be_a_quarter_of_an_hour_off() -> None:
    head = signed_by_botocore()
    claim = claim_of(head)
    assert claim is not None
    made = claim.made_seconds
    assert code(head, made + 900) == code(head, made - 900) == "ok"
    assert code(head, made + 901) == code(head, made - 901) == "RequestTimeTooSkewed"


def test_a_date_header_takes_the_place_of_x_amz_date() -> None:
    head = published(
        "GET",
        "/",
        "date;host;x-amz-content-sha256",
        "0" * 64,
        Date="Fri, 24 May 2013 00:00:00 GMT",
        x_amz_content_sha256=EMPTY,
    )
    headers = CIMultiDict(head.headers)
    del headers["x-amz-date"]
    claim = claim_of(RequestHead("GET", "/", headers))
    assert claim is not None and claim.timestamp == "20130524T000000Z"


@pytest.mark.slow
def test_a_key_that_does_not_exist_takes_as_long_as_a_wrong_signature() -> None:
    wrong = altered("x-amz-meta-colour", lambda value: "blue")
    unknown = altered("Authorization", lambda value: value.replace(KEY, KEY[:-1] + "X"))
    check = checker(NOW)

    def seconds(head: RequestHead) -> float:
        claim = claim_of(head)
        assert claim is not None
        start = time.perf_counter()
        for _ in range(100):
            with suppress(Refused):
                check.check(head, claim)
        return time.perf_counter() - start

    rounds = [(seconds(wrong), seconds(unknown)) for _ in range(40)]
    ratio = min(one for one, _ in rounds) / min(other for _, other in rounds)
    assert 0.8 < ratio < 1.25


def test_any_region_is_taken_where_none_is_configured_and_the_wrong_one_is_answered_with_the_right_one() -> None:
    head = signed_by_botocore(region="mars-1")
    assert code(head, NOW, region="") == "ok"
    claim = claim_of(head)
    assert claim is not None
    with pytest.raises(Refused) as caught:
        checker(NOW).check(head, claim)
    assert caught.value.details == {"Region": "us-east-1"}


@given(st.text(max_size=120), st.text(max_size=60), st.text(max_size=60))
def test_rubbish_is_refused_and_never_a_fault(authorization: str, target: str, date: str) -> None:
    prefixed = f"AWS4-HMAC-SHA256 Credential={KEY}/{authorization}"
    for text in (authorization, prefixed):
        headers = CIMultiDict({"Authorization": text, "x-amz-date": date, "x-amz-content-sha256": "x"})
        assert code(RequestHead("GET", f"/{target}", headers), NOW) != "ok"
    for rubbish in (f"?X-Amz-Algorithm={target}", f"?X-Amz-Credential={KEY}{target}&X-Amz-Expires={date}"):
        assert code(RequestHead("GET", f"/{rubbish}", CIMultiDict()), NOW) != "ok"


@pytest.mark.parametrize("region", ["\udcff", "\N{SNOWMAN}", "a" * 200])
def test_a_region_of_any_bytes_is_no_fault(region: str) -> None:
    head = altered("Authorization", lambda value: value.replace("us-east-1", region))
    assert code(head, NOW, region="") == "SignatureDoesNotMatch"


def test_what_is_kept_of_keys_is_bounded_and_right() -> None:
    keys = SigningKeys()
    for number in range(2 * KEYS_MAX):
        assert keys.get(KEY, SECRET, Scope("20130524", str(number))) != b""
    again = SigningKeys().get(KEY, SECRET, Scope("20130524", "0"))
    assert len(keys._keys) == KEYS_MAX and keys.get(KEY, SECRET, Scope("20130524", "0")) == again


def test_a_credential_does_not_show_its_secret() -> None:
    assert SECRET not in repr(Credential(SECRET, CALLER))
    claim = claim_of(signed_by_botocore())
    assert isinstance(claim, Claim)
    _, signing = checker(NOW).check(signed_by_botocore(), claim)
    assert signing.key.hex() not in repr(signing) and repr(signing.key) not in repr(signing)
