"""`config check`, `config show`, `config schema`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from reconsume.sidecar.settings.reference import json_schema, markdown_page
from tests.support.rings import inner
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good


def test_a_good_configuration_is_said_to_be_good(tmp_path: Path) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == {"group": "billing", "topics": ["orders"], "good": True}


def test_every_fault_is_a_line_on_stderr_and_the_code_is_78(tmp_path: Path) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path, "bogus: 1\nstart: newest\n"))
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert len(shown.stderr.splitlines()) == 2


def test_properties_that_librdkafka_refuses_are_faults_too(tmp_path: Path) -> None:
    sets = ["--set", "kafka.sasl.pasword=hunter2", "--set", "kafka.linger.ms=soon"]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "kafka.sasl.pasword: No such configuration property" in shown.stderr
    assert "kafka.linger.ms: Invalid value" in shown.stderr
    assert "hunter2" not in shown.stderr


@pytest.mark.parametrize("command", [("config", "check"), ("run",), ("dlq", "list")])
def test_what_librdkafka_refuses_is_told_with_all_other_faults(tmp_path: Path, command: tuple[str, ...]) -> None:
    names = ("bootstrapservers=b:1", "session.timeout=30s", "sasl.pasword=hunter2", "max.request.size=1")
    sets = [word for name in names for word in ("--set", f"kafka.{name}")]
    shown = reconsume(*command, "-c", write_good(tmp_path, "bogus: 1\nstart: newest\n"), *sets)
    assert (shown.exit_code, len(shown.stderr.splitlines())) == (78, 6)
    for fault in ("bootstrapservers: No such", "session.timeout: No such", "sasl.pasword: No such", "is Java's"):
        assert fault in shown.stderr
    assert "hunter2" not in shown.stderr


@pytest.mark.parametrize("group", ["sec-RETRY", "sec-main-x"])
def test_check_refuses_a_group_that_another_group_would_share_with(tmp_path: Path, group: str) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", f"group={group}")
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert f"group = {group}: must not" in shown.stderr


def test_a_file_that_is_not_there_is_a_warning_of_check_and_a_fault_of_run(tmp_path: Path) -> None:
    """A CI machine checks a configuration, and has none of its secrets."""
    more = "ui: true\noperators: {token_file: /nowhere/ui, audit_file: /tmp/audit}\napi: {token_file: /nowhere/api}\n"
    sets = [
        *("--set", "kafka.sasl.password.file=/nowhere/password"),
        *("--set", "kafka.ssl.ca.location=/nowhere/ca.crt"),
        *("--set", "kafka.ssl.key.location=/nowhere/tls.key"),
    ]
    shown = reconsume("config", "check", "-c", write_good(tmp_path, more), *sets)
    assert shown.exit_code == 0, shown.stderr
    started = reconsume("run", "-c", write_good(tmp_path, more), *sets)
    guarded = reconsume("run", "-c", write_good(tmp_path, more))
    assert (started.exit_code, guarded.exit_code) == (78, 78)
    told = [f"kafka.{name} = /nowhere/" for name in ("sasl.password.file", "ssl.ca.location", "ssl.key.location")]
    for file in (*told, "api.token_file = /nowhere/api", "operators.token_file = /nowhere/ui"):
        assert file in shown.stderr, file
        assert file in started.stderr + guarded.stderr, file
    assert shown.stderr.count("warning: ") == 5


SERVICE_FILES = ("tls.ca_file", "tls.cert_file", "tls.key_file", "bearer_token_file", "signing_secret_file")


def service_files(folder: Path) -> list[str]:
    """The settings of an https service whose files are in this folder."""
    named = (f"deliver.{name}={folder}/{name}" for name in SERVICE_FILES)
    return [word for text in ("deliver.url=https://localhost:1/", *named) for word in ("--set", text)]


def test_a_file_for_the_service_that_is_not_there_is_a_warning_of_check_and_a_fault_of_run(tmp_path: Path) -> None:
    sets = service_files(Path("/nowhere"))
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets)
    assert shown.exit_code == 0, shown.stderr
    started = reconsume("run", "-c", write_good(tmp_path), *sets)
    assert started.exit_code == 78
    for name in SERVICE_FILES:
        assert f"warning: deliver.{name} = /nowhere/{name} is not there" in shown.stderr
        assert f"deliver.{name} = /nowhere/{name}: is not there" in started.stderr


def test_a_bad_file_for_the_service_is_a_fault_that_shows_none_of_it(tmp_path: Path) -> None:
    for name in SERVICE_FILES:
        (tmp_path / name).write_text(f"{SECRET} and more")
    for command in (("config", "check"), ("run",)):
        shown = reconsume(*command, "-c", write_good(tmp_path), *service_files(tmp_path))
        assert (shown.exit_code, shown.stdout) == (78, "")
        for name in ("tls.ca_file", "bearer_token_file", "signing_secret_file"):
            assert f"deliver.{name} = {tmp_path}/{name}: hold" in shown.stderr, name
        assert SECRET not in shown.output
    (tmp_path / "tls.ca_file").unlink()  # what is there is looked at, whatever else is not
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *service_files(tmp_path))
    assert shown.exit_code == 78
    assert "warning: deliver.tls.ca_file" in shown.stderr
    assert "bearer_token_file" in shown.stderr


def test_show_names_the_files_for_the_service(tmp_path: Path) -> None:
    shown = reconsume("config", "show", "-c", write_good(tmp_path), *service_files(Path("/run/secrets")))
    rows = {row["key"]: row["value"] for row in map(json.loads, shown.stdout.splitlines())}
    assert {name: rows[f"deliver.{name}"] for name in SERVICE_FILES} == {
        name: f"/run/secrets/{name}" for name in SERVICE_FILES
    }


def test_a_token_that_crosses_a_network_in_plain_text_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    sets = ("--set", f"deliver.bearer_token_file={tmp_path}/token", "--set", ALLOWED)
    for url, warned in (("http://h:1/", True), ("https://h:1/", False), ("http://127.0.0.1:1/", False)):
        shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets, "--set", f"deliver.url={url}")
        assert shown.exit_code == 0, shown.stderr
        assert ("crosses the network in plain text" in shown.stderr) == warned, url


@pytest.mark.parametrize(
    ("url", "more", "warned"),
    [
        ("http://h:1/", (), True),
        ("http://h:1/", ("deliver.envelope=true",), False),
        ("http://h:1/", ("deliver.batch.max_size=8",), False),
        ("https://h:1/", (), False),
        ("http://127.0.0.1:1/", (), False),
    ],
)
def test_what_a_signature_does_not_cover_on_a_network_is_a_warning(
    tmp_path: Path, url: str, more: tuple[str, ...], warned: bool
) -> None:
    (tmp_path / "secret").write_text("whsec_" + "A" * 44)
    sets = (f"deliver.signing_secret_file={tmp_path}/secret", ALLOWED, f"deliver.url={url}", *more)
    words = [word for one in sets for word in ("--set", one)]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *words)
    assert shown.exit_code == 0, shown.stderr
    assert ("can be changed on the way; set deliver.envelope" in shown.stderr) == warned


@pytest.mark.parametrize(("size", "limit"), [("64KiB", ""), ("1MiB", ""), ("16MiB", "320Mi")])
def test_the_memory_that_large_answers_need_is_a_warning(tmp_path: Path, size: str, limit: str) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", f"deliver.max_answer={size}")
    assert shown.exit_code == 0, shown.stderr
    assert (f"deliver.max_answer = {size} needs a memory limit of {limit}" in shown.stderr) == bool(limit)


@pytest.mark.parametrize(
    ("sets", "warnings"),
    [
        ((), ()),
        (("deliver.timeout=4m45s",), ()),
        (("deliver.timeout=15m",), ("lock_timeout", "drain_timeout")),
        (("deliver.timeout=15m", "kafka.max.poll.interval.ms=1200000"), ()),
        (("lock_timeout=29s",), ("lock_timeout", "drain_timeout")),
        (("lock_timeout=29s", "drain_timeout=30s"), ("lock_timeout",)),
        (("drain_timeout=25s",), ("drain_timeout",)),
        (("topics=[{name: orders, timeout: 1m}]", "lock_timeout=59s", "drain_timeout=1m"), ("lock_timeout",)),
    ],
)
@pytest.mark.parametrize("order", ["none", "key"])
def test_a_delivery_that_may_outlast_a_release_or_a_drain_is_a_warning(
    tmp_path: Path, sets: tuple[str, ...], warnings: tuple[str, ...], order: str
) -> None:
    words = [word for one in (*sets, f"deliver.order={order}") for word in ("--set", one)]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *words)
    assert shown.exit_code == 0, shown.stderr
    told = [line for line in shown.stderr.splitlines() if "a delivery may take" in line]
    assert [name for name in ("lock_timeout", "drain_timeout") if any(f"({name})" in line for line in told)] == [
        *warnings
    ]
    assert any("two records of a key" in line for line in told) == (order == "key" and "lock_timeout" in warnings)


def test_a_setting_that_the_mode_ignores_is_named_with_its_line_and_why(tmp_path: Path) -> None:
    more = "retry:\n  max_reconsume_times: 3\n  ladder: [2s, 5s, 10s]\n"
    file = write_good(tmp_path, more)
    assert reconsume("config", "check", "-c", file).stderr == ""
    shown = reconsume("config", "check", "-c", file, "--set", "deliver.order=key")
    assert shown.exit_code == 0
    ladder, times = sorted(shown.stderr.splitlines())
    assert "warning: retry.ladder = [2s, 5s, 10s]: has no effect with deliver.order" in ladder
    assert "warning: retry.max_reconsume_times = 3: has no effect with deliver.order" in times
    assert f"({file}, line 8)" in times
    relay = ("--set", "deliver.url=null", "--set", "deliver.mode=relay", "--set", "deliver.timeout=30s")
    assert (
        "deliver.timeout = 30s: has no effect in relay mode" in reconsume("config", "check", "-c", file, *relay).stderr
    )


def test_many_files_are_checked_at_once_and_a_bad_one_hides_no_other(tmp_path: Path) -> None:
    good = write_good(tmp_path)
    bad, other = tmp_path / "bad.yaml", tmp_path / "other.yaml"
    bad.write_text("group: a b\n", encoding="utf-8")
    other.write_text(good.read_text("utf-8").replace("billing", "shipping") + "pull: {max_leased: 8}\n", "utf-8")
    shown = reconsume("config", "check", bad, good, other, tmp_path / "none.yaml", "-o", "jsonl")
    assert shown.exit_code == 78
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(row["file"], row["group"], row["good"]) for row in rows] == [
        (str(bad), None, False),
        (str(good), "billing", True),
        (str(other), "shipping", True),
        (str(tmp_path / "none.yaml"), None, False),
    ]
    assert f"{bad}: group = a b: must be" in shown.stderr
    assert f"warning: {other}: pull.max_leased = 8: has no effect" in shown.stderr
    assert f"{tmp_path / 'none.yaml'}: there is no such file" in shown.stderr
    both = reconsume("config", "check", good, "-c", good)
    assert (both.exit_code, both.stdout) == (2, "")


def test_strict_ends_with_1_for_a_warning_and_not_for_what_only_the_pod_has(tmp_path: Path) -> None:
    good = write_good(tmp_path)
    check = ("config", "check", "--strict", good)
    assert reconsume(*check).exit_code == 0
    assert reconsume(*check, "--set", "api.token_file=/nowhere/token").exit_code == 0, "a CI machine has no secrets"
    warned = reconsume(*check, "--set", "pull.max_leased=8")
    assert (warned.exit_code, "pull.max_leased" in warned.stderr) == (1, True)
    assert json.loads(warned.stdout)["good"], "the file is not wrong"
    assert reconsume(*check, "--set", "pull.max_leased=no").exit_code == 78


ENDLESS = (
    (["retry.max_reconsume_times=100"], ""),
    (["retry.max_reconsume_times=101"], "at least 101 times before it is a dead letter"),
    (
        ["retry.rules=[{name: r, reasons: [http-500], max_reconsume_times: 2000}]"],
        "rules[0].max_reconsume_times = 2000",
    ),
    (["deliver.order=key"], ""),
    (
        ["deliver.order=key", "retry.ordered_max_times=null"],
        "retry.ordered_max_times = null: a record that always fails",
    ),
)


@pytest.mark.parametrize(("sets", "warned"), ENDLESS)
def test_more_than_a_hundred_retries_and_a_written_null_are_warnings(
    tmp_path: Path, sets: list[str], warned: str
) -> None:
    words = [word for one in sets for word in ("--set", one)]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *words)
    assert shown.exit_code == 0, shown.stderr
    assert warned in shown.stderr
    assert ("always fails" in shown.stderr) is (warned != "")


def test_urls_to_which_run_would_send_nothing_are_faults(tmp_path: Path) -> None:
    """Given a path that a request line cannot carry, and an address where a cloud serves its metadata."""
    sets = [
        *("--set", "deliver.url=http://127.0.0.1:8080/bestellung/größe"),
        *("--set", "deliver.health_url=http://169.254.169.254/latest", "--set", "deliver.allow_remote=true"),
    ]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "deliver.url: the path of 'http://127.0.0.1:8080/bestellung/größe' has characters" in shown.stderr
    assert "deliver.health_url: 169.254.169.254 is a link-local address" in shown.stderr


def test_check_reads_no_device_to_its_end_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """Given a configuration of somebody else that names what is no file, then it is refused, and at once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sets = [
        *("--set", "api.token_file=/dev/zero"),
        *("--set", f"kafka.ssl.ca.location={pipe}"),
        *("--set", "kafka.ssl.key.location=/dev/zero"),
    ]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), *sets)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "api.token_file = /dev/zero: cannot be read: it is a device, and no plain file" in shown.stderr
    assert f"kafka.ssl.ca.location = {pipe}: cannot be read: it is a pipe, and no plain file" in shown.stderr
    assert "kafka.ssl.key.location = /dev/zero: cannot be read: it is a device, and no plain file" in shown.stderr


@pytest.mark.parametrize("setting", ["api.token_file", "operators.token_file"])
@pytest.mark.parametrize(
    ("held", "says"),
    [
        ("ops: \n", "line 1 is neither TOKEN or"),
        ("# ours\n\nalice: secret-secret-secret\nbob:\n", "line 4 is neither TOKEN or"),
        ("two words here\n", "line 1 is neither TOKEN or"),
        ("ops: two words\n", "line 1 is neither TOKEN or"),
        ("sécret\n", "line 1 is neither TOKEN or"),
        ("a\x00b\n", "line 1 is neither TOKEN or"),
        ("fifteen-letters\n", "line 1 is neither TOKEN or"),
        ("ops: ${OPERATORS_TOKEN}\n", "line 1 is neither TOKEN or"),
        ("good-enough-for-operators\n<the-token-goes-here>\n", "line 2 is neither TOKEN or"),
        ("# nothing yet\n", "it holds no token"),
        ("", "it holds no token"),
    ],
)
def test_check_names_the_line_of_a_token_file_that_is_no_token_and_shows_nothing_of_it(
    tmp_path: Path, setting: str, held: str, says: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(held, encoding="utf-8")
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", f"{setting}={file}")
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert f"{setting} = {file}: {says}" in shown.stderr
    assert not any(word in shown.stderr for word in held.split() if len(word) > 3)


def test_check_refuses_one_secret_under_two_names_and_takes_two_secrets_of_one_name(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    given = ("config", "check", "-c", write_good(tmp_path), "--set", f"api.token_file={tokens}")
    tokens.write_text("ann: secret-of-16-signs-1\nann: secret-of-16-signs-2\n", encoding="utf-8")
    assert reconsume(*given).exit_code == 0
    tokens.write_text("ann: secret-of-16-signs-1\nbob: secret-of-16-signs-1\n", encoding="utf-8")
    shown = reconsume(*given)
    assert shown.exit_code == 78
    assert "its tokens number 1 and 2 are one secret, called ann and bob" in shown.stderr
    assert "secret-of" not in shown.stderr


def test_an_option_that_takes_one_value_is_refused_a_second_time_and_a_list_is_not(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    shown = reconsume("dlq", "list", "-c", file, "--since", "1h", "--since=2h")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "--since is given more than once: 1h and 2h; it takes one value" in shown.stderr
    sets = ("--set", "start=latest", "--set", "start=earliest")
    assert reconsume("config", "check", "-c", file, *sets).exit_code == 0


def test_check_refuses_a_token_that_the_service_and_operators_share(tmp_path: Path) -> None:
    (tmp_path / "service").write_text("the-services-own-token\nthe-shared-token-of-both\n")
    (tmp_path / "operators").write_text("ann: the-shared-token-of-both\n")
    sets = [f"{name}.token_file={tmp_path / file}" for name, file in (("api", "service"), ("operators", "operators"))]
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", sets[0], "--set", sets[1])
    assert shown.exit_code == 78
    assert "its token number 1 is in api.token_file too" in shown.stderr
    assert "shared-token" not in shown.stderr


def test_show_gives_each_value_as_written_with_its_origin(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    shown = reconsume("config", "show", "-c", file, RECONSUME_DELIVER__TIMEOUT="90s")
    rows = {row["key"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert rows["deliver.timeout"] == {
        "key": "deliver.timeout",
        "value": "1m30s",
        "origin": "RECONSUME_DELIVER__TIMEOUT",
    }
    assert rows["group"]["origin"] == f"{file}, line 1"
    assert rows["retry.max_reconsume_times"] == {"key": "retry.max_reconsume_times", "value": 16, "origin": "default"}


def test_show_masks_secrets(tmp_path: Path) -> None:
    shown = reconsume("config", "show", "-c", write_good(tmp_path), RECONSUME_KAFKA__SASL_PASSWORD="hunter2")
    assert "hunter2" not in shown.stdout
    assert "kafka.sasl.password" in shown.stdout


SECRET = "S3cretS3cret"
ALLOWED = "deliver.allow_remote=true"
URLS = (
    *(
        "http://127.0.0.1:1/e?token={}",
        "http://127.0.0.1:1/e?{}",
        "http://u:{}@127.0.0.1:1/e",
        "http://127.0.0.1:1/e#{}",
    ),
    *("https://h/?t={}", "http://h:0/?a b={}", "127.0.0.1:1/e?{}", "http://10.0.0.1/e?t={}", "http://169.254.1.1/?{}"),
    *("unix:/run/app.sock:/e?t={}", "unix:run?{}"),
)


@pytest.mark.parametrize("key", ["deliver.url", "deliver.health_url", "kafka.sasl.oauthbearer.token.endpoint.url"])
@pytest.mark.parametrize("words", inner("config show", ["config show", "config check", "explain"]))
def test_no_command_shows_the_secret_of_a_url_whether_it_is_sound_or_not(tmp_path: Path, words: str, key: str) -> None:
    file = write_good(tmp_path)
    for form in URLS:
        shown = reconsume(*words.split(), "-c", file, "--set", f"{key}={form.format(SECRET)}", "--set", ALLOWED)
        assert SECRET not in shown.output, form


@pytest.mark.parametrize("form", ["http://127.0.0.1:1/e?token={}", "unix:/run/app.sock:/e?t={}"])
def test_doctor_names_a_service_that_is_away_without_the_secret_of_its_url(tmp_path: Path, form: str) -> None:
    url = form.format(SECRET)
    urls = ("--set", f"deliver.url={url}", "--set", f"deliver.health_url={url}")
    shown = reconsume("doctor", "-c", write_good(tmp_path), *urls)
    assert form.partition("?")[0] in shown.output
    assert SECRET not in shown.output


def test_schema_needs_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(reconsume("config", "schema").stdout) == json_schema()
    assert reconsume("config", "schema", "--markdown").stdout == markdown_page()
    assert reconsume("config", "schema", "-o", "tsv").stdout.startswith("key\tallowed\tdefault\tmeaning\ngroup\t")


@pytest.mark.parametrize("command", [("config", "check"), ("run",), ("doctor",), ("dlq", "list"), ("topics", "check")])
def test_properties_that_fight_with_each_other_end_every_command_with_their_sentence(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Each is good alone: without this a sidecar ran and read nothing, and no probe and no line told of it."""
    sets = ("--set", "kafka.message.timeout.ms=120000", "--set", "kafka.retries=0")
    shown = reconsume(*command, "-c", write_good(tmp_path), *sets)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "`retries` must be set >= 1 when `enable.idempotence` is true" in shown.stderr


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("kafka.sasl.password=hunter2", "kafka.sasl.password.file"),
        ("kafka.ssl.key.password=hunter2", "kafka.ssl.key.password.file"),
        ("kafka={sasl.password: hunter2}", "kafka.sasl.password.file"),
        ("kafka.sasl.oauthbearer.client.secret=hunter2", "kafka.sasl.oauthbearer.client.secret.file"),
        ("kafka.ssl.key.pem=hunter2", "kafka.ssl.key.location"),
        ("kafka.sasl.jaas.config=hunter2", "kafka_secret"),
        ("deliver.bearer_token=hunter2", "deliver.bearer_token_file"),
        ("api.token=hunter2", "api.token_file"),
        ("operators.token=hunter2", "operators.token_file"),
        ("deliver.url=https://user:hunter2@service.example/", "the configuration file"),
    ],
)
def test_a_secret_on_the_command_line_is_refused_with_the_setting_for_a_file(
    tmp_path: Path, given: str, file: str
) -> None:
    """Given a secret in --set, which every process could read, then no command takes it or repeats it."""
    for command in (("config", "check"), ("config", "show"), ("run",), ("topics", "plan")):
        shown = reconsume(*command, "-c", write_good(tmp_path), "--set", given)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert f"give it by {file}" in " ".join(shown.stderr.replace("│", " ").split())
        assert "hunter2" not in shown.stderr


@pytest.mark.parametrize("given", ["deliver.bearer_token_file=hunter2", "deliver={bearer_token_file: hunter2}"])
def test_what_may_be_a_secret_in_place_of_its_file_is_refused_too(tmp_path: Path, given: str) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", given)
    assert shown.exit_code == 2
    assert "deliver.bearer_token_file must be the absolute path" in " ".join(shown.stderr.split())
    assert "hunter2" not in shown.stderr


@pytest.mark.parametrize(
    "given",
    [
        "kafka.sasl.password=null",
        "kafka.sasl.username=billing",
        "api.token_file=/run/token",
        "operators.token_file=null",
        "deliver.bearer_token_file=/run/token",
        "kafka.sasl.oauthbearer.token.endpoint.url=https://login.example/oauth2/token",
        "deliver.url=http://127.0.0.1:8080/a@b?at=c@d",
    ],
)
def test_what_is_no_secret_may_be_on_the_command_line(tmp_path: Path, given: str) -> None:
    assert reconsume("config", "show", "-c", write_good(tmp_path), "--set", given).exit_code != 2
