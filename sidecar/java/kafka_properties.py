"""Translate the section `kafka` for Kafka's Java client, which Spark uses.

Only the properties for the connection and for the client's identity are translated. The rest of the section tunes the
sidecar's client. Nothing is read here, except the files of certificates and keys by the given function `read`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Read = Callable[[str], str]
"""A function that returns the text of a file. Raises OSError."""

CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
"""Prefixes of the properties that decide whether a connection succeeds. Each is translated or refused, never
ignored."""
SAME = frozenset(
    {"bootstrap.servers", "client.dns.lookup", "sasl.kerberos.service.name", "sasl.kerberos.min.time.before.relogin"}
)
UNTRANSLATABLE = {
    "enable.ssl.certificate.verification": "Java's client always verifies; trust the broker's CA by ssl.ca.location",
    "ssl.cipher.suites": "Java has other names for the suites",
    "ssl.curves.list": "Java takes them from its own security properties",
    "ssl.sigalgs.list": "Java takes them from its own security properties",
    "ssl.crl.location": "Java takes revocation lists from its own security properties",
    "sasl.kerberos.kinit.cmd": "Java logs in by itself, from the key table",
}
"""Properties that are refused with a reason of their own. A value that is Java's own behaviour (JAVAS_OWN) is
allowed."""
JAVAS_OWN = {("enable.ssl.certificate.verification", "true")}
LOGIN = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": f"{LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{LOGIN}.scram.ScramLoginModule",
}
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
PBES2 = bytes.fromhex("06092a864886f70d01050d")
"""The object identifier in a key that is encrypted by PBES2, as OpenSSL 3 does it."""
CONVERT = "`openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in KEY -out KEY8`, or with -nocrypt for one without a password"
FILE = "write the Java client's own properties into a file and name it with --kafka-properties"


@dataclass(slots=True)
class Translation:
    """The properties for the Java client, and a sentence for each property that has no translation."""

    properties: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def refuse(self, name: str, why: str) -> None:
        """Note that a property cannot be translated."""
        self.problems.append(f"kafka.{name} cannot be translated for Spark's Java client: {why}; else {FILE}")


def to_java(kafka: Mapping[str, str], read: Read) -> Translation:
    """Return the properties for Java, and one sentence for each that has none; never both for one property."""
    done = Translation()
    remaining = {name: value for name, value in kafka.items() if name in SAME or name.startswith(CONNECTION)}
    done.properties.update({name: remaining.pop(name) for name in SAME & remaining.keys()})
    if "security.protocol" in remaining:
        done.properties["security.protocol"] = remaining.pop("security.protocol").upper()
    take_sasl(remaining, done)
    take_trust(remaining, done)
    take_key(remaining, done, read)
    for name, value in remaining.items():
        if (name, value.lower()) not in JAVAS_OWN:
            done.refuse(name, UNTRANSLATABLE.get(name, "it has no counterpart there that we know"))
    return done


def take_sasl(remaining: dict[str, str], done: Translation) -> None:
    """Translate the mechanism and the credentials.

    Java has the name and the password in one text, the JAAS configuration.
    """
    mechanism = remaining.pop("sasl.mechanisms", None) or remaining.pop("sasl.mechanism", None)
    remaining.pop("sasl.mechanism", None)
    if mechanism is None:
        if "sasl.username" in remaining or "sasl.kerberos.keytab" in remaining:
            mechanism = "GSSAPI"  # librdkafka's default
        else:
            return
    done.properties["sasl.mechanism"] = mechanism.upper()
    if mechanism.upper() in MODULES:
        user, password = remaining.pop("sasl.username", ""), remaining.pop("sasl.password", "")
        options = {"username": user, "password": password}
        done.properties["sasl.jaas.config"] = jaas(MODULES[mechanism.upper()], options)
    elif mechanism.upper() == "GSSAPI":
        take_kerberos(remaining, done)
    else:
        done.refuse(f"sasl.mechanisms={mechanism}", "its login is a Java class, with settings of its own")


def take_kerberos(remaining: dict[str, str], done: Translation) -> None:
    """Translate the key table and its principal. The name of the service is the same for both clients."""
    keytab, principal = remaining.pop("sasl.kerberos.keytab", None), remaining.pop("sasl.kerberos.principal", None)
    if keytab is None or principal is None:
        done.refuse("sasl.mechanisms=GSSAPI", "it needs sasl.kerberos.keytab and sasl.kerberos.principal")
        return
    # librdkafka has a default for the service's name, Java has none.
    done.properties.setdefault("sasl.kerberos.service.name", "kafka")
    options = {"keyTab": keytab, "principal": principal}
    done.properties["sasl.jaas.config"] = jaas(KERBEROS, options, "useKeyTab=true storeKey=true ")


def jaas(module: str, options: Mapping[str, str], plain: str = "") -> str:
    """Return one entry of a JAAS configuration."""
    quoted = " ".join(f'{name}="{escaped(value)}"' for name, value in options.items())
    return f"{module} required {plain}{quoted};"


def escaped(text: str) -> str:
    """Return a text as it stands between the quotes of a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def take_trust(remaining: dict[str, str], done: Translation) -> None:
    """Translate the CA to trust, and whether the broker's name is checked."""
    if (location := remaining.pop("ssl.ca.location", None)) is not None:
        if location == "probe":
            done.refuse("ssl.ca.location=probe", "name the file of the CA's certificates")
        else:
            done.properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}
    if (pem := remaining.pop("ssl.ca.pem", None)) is not None:
        done.properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    if (algorithm := remaining.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        done.properties["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm


def take_key(remaining: dict[str, str], done: Translation, read: Read) -> None:
    """Translate the client's identity for TLS.

    A PKCS#12 store is passed on by its path. PEM files are passed on by their text, because Java wants both parts in
    one store.
    """
    if (store := remaining.pop("ssl.keystore.location", None)) is not None:
        done.properties |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": store}
        if (password := remaining.pop("ssl.keystore.password", None)) is not None:
            done.properties["ssl.keystore.password"] = password
    certificate = taken_pem(remaining, "ssl.certificate", done, read)
    key = taken_pem(remaining, "ssl.key", done, read)
    password = remaining.pop("ssl.key.password", None)
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        done.refuse("ssl.certificate and ssl.key", "one is given without the other")
    elif key and not readable(key):
        done.refuse("ssl.key", f"Java reads PKCS#8 keys, and none locked by PBES2; convert it by {CONVERT}")
    else:
        properties = {"ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
        done.properties |= {"ssl.keystore.type": "PEM", **properties}
        if password is not None:
            done.properties["ssl.key.password"] = password


def readable(key: str) -> bool:
    """Whether Kafka's Java client can read this key. Measured with 3.9 on Java 17."""
    begin = next((line for line in PKCS8 if line in key), None)
    if begin is None:
        return False
    try:
        return PBES2 not in b64decode(key.partition(begin)[2].partition("-----END")[0])
    except ValueError:
        return False


def taken_pem(remaining: dict[str, str], name: str, done: Translation, read: Read) -> str | None:
    """Return a certificate or key that is given as text or by its file. None if it is not given.

    Empty if its file cannot be read; the property is then refused.
    """
    location, text = remaining.pop(f"{name}.location", None), remaining.pop(f"{name}.pem", None)
    if location is None:
        return text
    try:
        return read(location)
    except (OSError, UnicodeDecodeError) as error:
        done.refuse(f"{name}.location", f"{location} cannot be read: {error}")
        return ""


def properties_text(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{name}={line(value)}\n" for name, value in properties.items())


def line(value: str) -> str:
    """Return a value on one line of a properties file."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{text}" if text.startswith(" ") else text
