// Many records in each request, with a verdict for each. Run it with `java Batch.java`.
// Your service has a JSON library; this one reads only the two fields that it needs.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Batch {
    static final Pattern RECORD =
            Pattern.compile("\\{\"id\":\"([^\"]+)\".*?\"value_base64\":(?:null|\"([^\"]*)\")");

    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8080), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/events", exchange -> {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            List<String> verdicts = new ArrayList<>();
            for (Matcher record = RECORD.matcher(body); record.find(); ) {
                String value = record.group(2) == null ? "" : record.group(2);
                boolean good = new String(Base64.getDecoder().decode(value)).startsWith("{");
                verdicts.add("{\"id\":\"" + record.group(1) + "\",\"verdict\":\"" + (good ? "commit" : "retry") + "\"}");
            }
            byte[] answer = ("{\"verdicts\":[" + String.join(",", verdicts) + "]}").getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
    }
}
