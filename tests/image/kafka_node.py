"""The entry point of the test's Kafka image: from KAFKA_… variables to a formatted node that runs."""

import os
import subprocess
from pathlib import Path

HOME = Path("/tmp/kafka")
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", "/opt/kafka/jars/*"]


def main() -> None:
    """Write the properties, format the folder, become the broker."""
    HOME.mkdir(parents=True, exist_ok=True)
    settings = {name[6:].lower().replace("_", "."): value for name, value in os.environ.items() if name[:6] == "KAFKA_"}
    settings["log.dirs"] = str(HOME / "data")
    properties = HOME / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    storage = ["kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER}", "--config", str(properties)]
    subprocess.run([*JAVA, *storage], check=True)
    os.execvp(JAVA[0], [*JAVA, "kafka.Kafka", str(properties)])


if __name__ == "__main__":
    main()
