// A service that reads Kafka itself, beside a relay: it fails each record once, and takes it when it comes back.
// Every other failure it writes to the level topic itself, the rest it posts to the sidecar.
// Arguments: bootstrap, main topic, ready topic, level topic, delay in ms, group, URL of the post, records to take.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class RelayService {
  static String[] args;
  static HttpClient http = HttpClient.newHttpClient();

  public static void main(String[] given) throws Exception {
    args = given;
    Map<String, Object> reading = Map.of(
        "bootstrap.servers", args[0], "group.id", args[5], "isolation.level", "read_committed",
        "auto.offset.reset", "earliest", "enable.auto.commit", "false");
    Map<String, Object> writing = Map.of("bootstrap.servers", args[0], "acks", "all");
    int wanted = Integer.parseInt(args[7]);
    var bytes = new ByteArrayDeserializer();
    try (var consumer = new KafkaConsumer<byte[], byte[]>(reading, bytes, bytes);
        var producer = new KafkaProducer<byte[], byte[]>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
      consumer.subscribe(List.of(args[1], args[2]));
      while (wanted > 0) {
        for (var record : consumer.poll(Duration.ofMillis(200))) {
          if (record.topic().equals(args[2])) {
            take(record);
            wanted--;
          } else if (record.offset() % 2 == 0) {
            producer.send(failed(record)).get();
          } else {
            post(record);
          }
        }
        consumer.commitSync();
      }
    }
  }

  static void take(ConsumerRecord<byte[], byte[]> record) {
    System.out.println(String.join("\t", "took", text(record, "ORIGIN_MESSAGE_ID"), text(record, "RECONSUMETIMES"),
        text(record, "RETRY_DUE_AT"), Long.toString(record.timestamp()), new String(record.value(), StandardCharsets.UTF_8),
        text(record, "tenant")));
  }

  static ProducerRecord<byte[], byte[]> failed(ConsumerRecord<byte[], byte[]> record) {
    var copy = new ProducerRecord<>(args[3], record.key(), record.value());
    record.headers().forEach(copy.headers()::add);
    long due = System.currentTimeMillis() + Long.parseLong(args[4]);
    Map<String, String> ours = Map.of(
        "REAL_TOPIC", record.topic(),
        "ORIGIN_MESSAGE_ID", record.topic() + ":" + record.partition() + ":" + record.offset(),
        "RECONSUMETIMES", "1", "RETRY_DUE_AT", Long.toString(due), "RETRY_REASON", "java", "RETRY_TOPIC", copy.topic());
    ours.forEach((name, value) -> copy.headers().add(name, value.getBytes(StandardCharsets.UTF_8)));
    return copy;
  }

  static void post(ConsumerRecord<byte[], byte[]> record) throws Exception {
    var headers = new StringBuilder();
    for (Header header : record.headers()) {
      headers.append(headers.isEmpty() ? "" : ",");
      headers.append("[\"").append(header.key()).append("\",").append(base64(header.value())).append("]");
    }
    String body = """
        {"topic": "%s", "partition": %d, "offset": %d, "timestamp": %d, "key_base64": %s, "value_base64": %s,
         "headers": [%s], "delay": "%sms", "reason": "java"}
        """.formatted(record.topic(), record.partition(), record.offset(), record.timestamp(), base64(record.key()),
        base64(record.value()), headers, args[4]);
    var request = HttpRequest.newBuilder(URI.create(args[6])).header("Content-Type", "application/json")
        .POST(HttpRequest.BodyPublishers.ofString(body)).build();
    var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 201) {
      throw new IllegalStateException(answer.statusCode() + " " + answer.body());
    }
  }

  static String base64(byte[] data) {
    return data == null ? "null" : "\"" + Base64.getEncoder().encodeToString(data) + "\"";
  }

  static String text(ConsumerRecord<byte[], byte[]> record, String name) {
    Header header = record.headers().lastHeader(name);
    return header == null ? "" : new String(header.value(), StandardCharsets.UTF_8);
  }
}
