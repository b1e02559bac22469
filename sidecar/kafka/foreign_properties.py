"""Name properties of Kafka's Java client, and logins that our client has not, and say what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

LOGIN = "write sasl.mechanism, sasl.username and sasl.password (or sasl.password.file)"
TRUST = "is Java's trust store: write ssl.ca.location with the CA's certificates as PEM (`keytool -exportcert -rfc`)"
CLASS = "names a Java class, and this client has none; leave it out"
IAM = (
    "MSK's IAM login (AWS_MSK_IAM) is Java code that this client has not: use MSK's SASL/SCRAM "
    "(sasl.mechanism: SCRAM-SHA-512, port 9096) or client certificates (security.protocol: SSL, port 9094)"
)
KERBEROS = (
    "Kerberos (GSSAPI) is not in the client that Reconsume brings: use SCRAM-SHA-512, PLAIN, OAUTHBEARER or client "
    "certificates"
)
NO_MECHANISM = "is missing: a SASL login needs one of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER"
TOKEN = (
    "OAUTHBEARER needs a way to its tokens: sasl.oauthbearer.method: oidc, with sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret (or their .file)"
)
FOREIGN: Mapping[str, str] = {
    "sasl.jaas.config": f"is Java's: {LOGIN}, or mount Strimzi's secret by kafka_secret",
    "ssl.truststore.location": TRUST,
    "ssl.truststore.password": TRUST,
    "ssl.truststore.type": TRUST,
    "ssl.truststore.certificates": "is Java's: write ssl.ca.pem",
    "ssl.keystore.type": "is Java's: ssl.keystore.location takes PKCS#12 (`keytool -importkeystore` makes it of JKS)",
    "ssl.keystore.key": "is Java's: write ssl.key.pem",
    "ssl.keystore.certificate.chain": "is Java's: write ssl.certificate.pem",
    "ssl.enabled.protocols": "is Java's; leave it out, since the client takes TLS 1.2 and 1.3",
    "ssl.protocol": "is Java's; leave it out, since the client takes TLS 1.2 and 1.3",
    "sasl.client.callback.handler.class": f"{CLASS}. {IAM}",
    "sasl.login.callback.handler.class": f"{CLASS}. {TOKEN}",
    "sasl.login.class": CLASS,
    "key.serializer": CLASS,
    "value.serializer": CLASS,
    "key.deserializer": CLASS,
    "value.deserializer": CLASS,
    "interceptor.classes": CLASS,
    "metric.reporters": CLASS,
    "partitioner.class": CLASS,
    "max.request.size": "is Java's: leave it out, since the topics' own limits decide",
    "buffer.memory": "is Java's: write queue.buffering.max.kbytes",
    "max.block.ms": "is Java's; leave it out",
    "default.api.timeout.ms": "is Java's; leave it out",
    "fetch.max.wait.ms": "is Java's: write fetch.wait.max.ms",
    "sasl.kerberos.service.name": KERBEROS,
    "sasl.kerberos.keytab": KERBEROS,
    "sasl.kerberos.principal": KERBEROS,
}
"""Properties by their names."""
SASL = ("SASL_PLAINTEXT", "SASL_SSL")


def foreign_faults(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each property that belongs to another client, and for a login that cannot work here."""
    for name in given:
        if name in FOREIGN:
            yield f"kafka.{name}: {FOREIGN[name]}"
    name = "sasl.mechanisms" if "sasl.mechanisms" in given else "sasl.mechanism"
    mechanism = given.get(name, "").upper()
    if mechanism.startswith("AWS_MSK_IAM"):
        yield f"kafka.{name}: {IAM}"
    elif mechanism == "GSSAPI":
        yield f"kafka.{name}: {KERBEROS}"
    elif given.get("security.protocol", "").upper() not in SASL:
        return
    elif not mechanism:
        yield f"kafka.{name}: {NO_MECHANISM}"
    elif mechanism == "OAUTHBEARER" and not _has_tokens(given):
        yield f"kafka.sasl.oauthbearer.method: {TOKEN}"


def _has_tokens(given: Mapping[str, str]) -> bool:
    unsecured = given.get("enable.sasl.oauthbearer.unsecure.jwt", "").lower() == "true"
    return unsecured or given.get("sasl.oauthbearer.method", "").lower() == "oidc"
