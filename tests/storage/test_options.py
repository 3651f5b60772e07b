"""Storage options: what is refused, and what delta-rs, Arrow and Hadoop find of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext import masking
from spark_ext.errors import ConfigurationError
from spark_ext.storage import StoreOptions, filesystem_of, is_s3
from spark_ext.storage.options import KEYS

GOOD = {
    "aws_access_key_id": "AKIA-of-a-test", "aws_secret_access_key": "hunter2-hunter2",
    "aws_endpoint_url": "http://127.0.0.1:9000", "aws_region": "eu-central-1", "aws_allow_http": "true",
}  # fmt: skip


def of(**changes: object) -> StoreOptions:
    return StoreOptions.of({**GOOD, **changes}, "job 'j'")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"aws_acces_key_id": "x"}, "unknown storage option 'aws_acces_key_id'; did you mean 'aws_access_key_id'"),
        ({"region": "x"}, "unknown storage option 'region'; did you mean 'aws_region'"),
        ({"fs.s3a.endpoint": "x"}, "unknown storage option 'fs.s3a.endpoint'"),
        ({"aws_s3_allow_unsafe_rename": "true"}, "lose each other's commits"),
        ({"aws_conditional_put": "disabled"}, "always conditional writes"),
        ({"aws_access_key_id": "x"}, "'aws_secret_access_key' is missing"),
        ({"aws_secret_access_key": "xxxxxx"}, "'aws_access_key_id' is missing"),
        ({"aws_session_token": "xxxxxx"}, "belongs to a temporary key"),
        ({"aws_endpoint_url": "localhost:9000"}, "not the address of a server"),
        ({"aws_endpoint_url": "https://key:secret@s3.example.org"}, "not the address of a server"),
        ({"aws_endpoint_url": "http://127.0.0.1:1"}, "'aws_allow_http' is not set"),
        ({"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "false"}, "'aws_allow_http' is not set"),
        ({"aws_allow_http": "perhaps"}, "'aws_allow_http' is not true or false"),
        ({"aws_region": ""}, "'aws_region' has no value"),
        ({"aws_region": None}, "'aws_region' has no value"),
        ({"aws_region": "a", "AWS_DEFAULT_REGION": "b"}, "'aws_region' is given twice"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        StoreOptions.of(given, "job 'j'")
    assert refused.value.operator == "job 'j'"
    assert "key:secret" not in str(refused.value)


def test_secrets_are_masked_and_settings_are_not() -> None:
    options = of()
    assert masking.mask("hunter2-hunter2 AKIA-of-a-test") == "*** ***"
    assert masking.mask("http://127.0.0.1:9000 eu-central-1") == "http://127.0.0.1:9000 eu-central-1"
    assert "hunter2" not in repr(options)


def test_all_libraries_look_at_the_same_place() -> None:
    hadoop = of().hadoop()
    assert hadoop["fs.s3a.endpoint"] == of().environment()["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9000"
    assert hadoop["fs.s3a.connection.ssl.enabled"] == "false"
    assert hadoop["fs.s3a.path.style.access"] == "true"
    assert of(aws_virtual_hosted_style_request="TRUE").hadoop()["fs.s3a.path.style.access"] == "false"
    assert of(aws_endpoint_url="https://s3.example.org").hadoop()["fs.s3a.connection.ssl.enabled"] == "true"
    assert "fs.s3a.session.token" not in hadoop
    assert "Anonymous" in StoreOptions.of({"aws_skip_signature": True}, "x").hadoop()["fs.s3a.aws.credentials.provider"]


def test_options_of_other_stores_are_no_settings_of_s3() -> None:
    options = StoreOptions.of({"azure_storage_account_name": "a", "azure_storage_account_key": "k" * 8}, "x")
    assert not options.for_s3
    assert options.hadoop() == {}
    assert options.environment()["AZURE_STORAGE_ACCOUNT_NAME"] == "a"


@given(st.fixed_dictionaries({}, optional={key: st.just("true") for key in KEYS if "endpoint" not in key}))
def test_the_environment_gives_back_what_was_put_there(values: dict[str, str]) -> None:
    options = StoreOptions(values)
    assert StoreOptions.of_environment(options.environment()) == options


def test_what_is_given_comes_before_the_environment() -> None:
    there = StoreOptions.of_environment({"AWS_REGION": "there", "AWS_ENDPOINT_URL": "https://there"})
    assert StoreOptions({"aws_region": "given"}).over(there).values == {
        "aws_region": "given",
        "aws_endpoint_url": "https://there",
    }


def test_both_spellings_are_one_store_for_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in of().environment().items():
        monkeypatch.setenv(name, value)
    assert is_s3("s3a://b/x") and is_s3("S3://b") and not is_s3("gs://b") and not is_s3("/s3://")
    (one, place), (other, again) = filesystem_of("s3://b/x"), filesystem_of("s3a://b/x")
    assert (place, type(one)) == (again, type(other)) == ("b/x", type(one))
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    assert filesystem_of("s3a://b/x")[1] == "b/x"
