"""Secrets of the section `kafka` in mounted files: which properties, and how they become librdkafka's properties.

`Kafka` is the value of the section. The check of a configuration reads no secret, because `explain` or `topics export`
run where none is mounted. The first client that is made reads them. Their values never appear in our texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import open_plain, read_plain

SUFFIX = ".file"
FILED = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    }
)
"""Properties that may be given as `<name>.file: /path`. librdkafka has no property of these names with the suffix."""
LOCATIONS = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "sasl.oauthbearer.assertion.private.key.file",
    "https.ca.location",
)
"""Properties that name a file which librdkafka itself reads, once for each client."""
BY_FOLDER = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)
"""Properties that Strimzi's secret may give."""
WHAT_FOLDER = "kafka_secret = {}: holds neither user.crt and user.key, nor user.p12 and user.password, nor \
sasl.jaas.config; mount the secret of a Strimzi KafkaUser there"
MOST = 65_536
"""Bytes of a secret. A larger file was mounted by mistake."""
LARGEST_READ = 16 * 1024 * 1024
"""Bytes of a file that librdkafka or the watcher of credentials reads. A bundle of all public CAs has 0.25 MB."""
USER, PASSWORD = (re.compile(rf'\b{name}\s*=\s*"((?:[^"\\]|\\.)*)"') for name in ("username", "password"))

Read = Callable[[Path], str]


class Kafka(Mapping[str, str]):
    """The properties for librdkafka. `given`: as they were written; `folder`: the mounted secret of Strimzi.

    Files are read once, at the first access that needs them. Raises ConfigError with every file that cannot be read.
    """

    __slots__ = ("_read", "folder", "properties")

    def __init__(self, properties: Mapping[str, str], folder: Path | None = None) -> None:
        self.properties = MappingProxyType(dict(properties))
        self.folder = folder
        self._read: Mapping[str, str] | None = None

    def fresh(self) -> Kafka:
        """Return the same properties, whose files are read again."""
        return Kafka(self.properties, self.folder)

    @property
    def by_file(self) -> Mapping[str, Path]:
        """The properties that are given as `<name>.file`, with the paths of their files."""
        names = (name.removesuffix(SUFFIX) for name in self.properties if is_filed(name))
        return {name: Path(self.properties[name + SUFFIX]) for name in names}

    def read_by_client(self) -> tuple[Path, ...]:
        """Return the files and folders that librdkafka itself reads, once for each client. Raises ConfigError."""
        return tuple(Path(self[name]) for name in LOCATIONS if name in self and self[name] != "probe")

    def __getitem__(self, name: str) -> str:
        if name in self.properties and not is_filed(name):
            return self.properties[name]
        if name in self.by_file or (self.folder is not None and name in BY_FOLDER):
            return self._properties()[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties())

    def __len__(self) -> int:
        return len(self._properties())

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self[name] is not None
        except KeyError:
            return False

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Kafka):
            return self.properties == other.properties and self.folder == other.folder
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # as every mapping

    def __repr__(self) -> str:
        return f"Kafka({', '.join(sorted(self.properties))})"  # names alone, because it may appear in a traceback

    def _properties(self) -> Mapping[str, str]:
        if self._read is None:
            self._read = MappingProxyType(resolved(self))
        return self._read


def is_filed(name: str) -> bool:
    """Whether a property names the file of a secret, as `<name>.file`."""
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in FILED


def resolved(kafka: Kafka) -> dict[str, str]:
    """Return all properties with the contents of the files. Raises ConfigError with every fault, never with a value."""
    faults: list[str] = []
    properties = {name: value for name, value in kafka.properties.items() if not is_filed(name)}
    for name, path in kafka.by_file.items():
        try:
            properties[name] = secret_in(path)
        except ValueError as fault:
            faults.append(f"kafka.{name}{SUFFIX} = {path}: {fault}")
    if kafka.folder is not None:
        try:
            theirs = of_user(kafka.folder)
            if "sasl.mechanisms" in properties:  # librdkafka's other name for the same
                theirs.pop("sasl.mechanism", None)
            properties = {**theirs, **properties}
        except ValueError as fault:
            faults.append(str(fault))
    for name in LOCATIONS:
        if name in properties and (why := unreadable(properties[name])):
            faults.append(f"kafka.{name} = {properties[name]}: {why}")
    if faults:
        raise ConfigError(faults)
    return properties


def secret_in(path: Path) -> str:
    """Return the content of a file, without the line end that editors and `echo` leave.

    Raises ValueError with a sentence.
    """
    try:
        held = read_plain(path, MOST)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    try:
        text = held.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None  # the error's own text would hold the bytes
    if not text:
        raise ValueError("is empty")
    return text


def unreadable(location: str) -> str:
    """Return why librdkafka cannot read a file. Empty if it can.

    A folder of certificates and `probe` are not opened, and count as readable. The client would wait for a pipe, and
    read a device without end.
    """
    path = Path(location)
    try:
        if location != "probe" and not path.is_dir():
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
            return f"has more than {LARGEST_READ} bytes" if size > LARGEST_READ else ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


STRIMZI = ("user.crt", "user.key", "user.p12", "user.password", "password", "sasl.jaas.config")
"""Keys of a KafkaUser's secret that identify the client. Its `ca.crt` is the CA of the *clients*, and says nothing
about brokers: `ssl.ca.location` names the CA to trust, the `ca.crt` of the secret `<cluster>-cluster-ca-cert`."""


def of_user(folder: Path) -> dict[str, str]:
    """Return the properties that follow from the mounted secret of a KafkaUser. Raises ValueError with a sentence."""
    if not folder.is_dir():
        raise ValueError(f"kafka_secret = {folder}: there is no such folder")
    there = {name: folder / name for name in STRIMZI if (folder / name).exists()}
    if "user.crt" in there and "user.key" in there:
        key = {"ssl.certificate.location": there["user.crt"], "ssl.key.location": there["user.key"]}
        return {"security.protocol": "SSL", **{name: str(path) for name, path in key.items()}}
    try:
        if "user.p12" in there and "user.password" in there:
            password = secret_in(there["user.password"])
            return {
                "security.protocol": "SSL",
                "ssl.keystore.location": str(there["user.p12"]),
                "ssl.keystore.password": password,
            }
        if "sasl.jaas.config" in there:
            return of_jaas(secret_in(there["sasl.jaas.config"]))
    except ValueError as fault:
        raise ValueError(f"kafka_secret = {folder}: {fault}") from None
    raise ValueError(WHAT_FOLDER.format(folder))


def of_jaas(text: str) -> dict[str, str]:
    """Return name and password from Java's login configuration. Raises ValueError, which never shows it."""
    user, password = USER.search(text), PASSWORD.search(text)
    if "ScramLoginModule" not in text or user is None or password is None:
        raise ValueError("its sasl.jaas.config is none of SCRAM with a username and a password")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": unquoted(user[1]),
        "sasl.password": unquoted(password[1]),
    }


def unquoted(text: str) -> str:
    """Return a text from between the quotes of a login configuration, without its escapes."""
    return re.sub(r"\\(.)", r"\1", text)
