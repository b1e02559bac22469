// A service that reads Kafka itself, and leaves its failures to a relay. It needs Kafka's client:
// `java -cp "kafka/libs/*" Relay.java`. Your service has a JSON library; this one writes plain names and reasons only.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Relay {
    static final URI RETRY = URI.create("http://127.0.0.1:8471/v1/retry");
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    /** Your work. An exception is a retry. */
    static void handle(byte[] value) {
        if (value == null || value.length == 0 || value[0] != '{') {
            throw new IllegalArgumentException("no-json");
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", "localhost:9092",
                "group.id", "billing",
                "isolation.level", "read_committed",
                "enable.auto.commit", "false",
                "auto.offset.reset", "earliest");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            consumer.subscribe(List.of("orders", "billing-RETRY"));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    try {
                        handle(record.value());
                    } catch (RuntimeException failed) {
                        post(record, failed.getMessage());
                    }
                }
                consumer.commitSync();
            }
        }
    }

    /** The response comes after the broker has the copy: only then is the record done here. */
    static void post(ConsumerRecord<byte[], byte[]> record, String reason) throws Exception {
        String headers = StreamSupport.stream(record.headers().spliterator(), false)
                .map(header -> "[\"" + header.key() + "\"," + text(header.value()) + "]")
                .collect(Collectors.joining(","));
        String failed = """
                {"topic": "%s", "partition": %d, "offset": %d, "timestamp": %d, "key_base64": %s,
                 "value_base64": %s, "headers": [%s], "reason": "%s"}
                """.formatted(record.topic(), record.partition(), record.offset(), record.timestamp(),
                text(record.key()), text(record.value()), headers, reason);
        HttpRequest request = HttpRequest.newBuilder(RETRY)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(failed))
                .build();
        HttpResponse<String> response = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() != 201) { // the record is read again after a restart
            throw new IllegalStateException(response.statusCode() + " " + response.body());
        }
    }

    static String text(byte[] data) {
        return data == null ? "null" : "\"" + Base64.getEncoder().encodeToString(data) + "\"";
    }
}
