// A worker of pull mode: copy the class and replace `handle`. Run it with `java Pull.java`.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Pull {
    static final String API = "http://127.0.0.1:8471/v1/";
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    // Your service has a JSON library; this one reads only the two fields that it needs.
    static final Pattern RECORD =
            Pattern.compile("\\{\"handle\":\"([^\"]+)\".*?\"value_base64\":(?:null|\"([^\"]*)\")");

    /** Your work. An exception is a retry. */
    static void handle(byte[] value) {
        if (value.length == 0 || value[0] != '{') {
            throw new IllegalArgumentException("no-json");
        }
    }

    public static void main(String[] args) throws Exception {
        while (true) {
            try {
                String records = call("receive", "{\"max\":10,\"invisible\":\"30s\",\"wait\":\"10s\"}");
                for (Matcher record = RECORD.matcher(records); record.find(); ) {
                    String value = record.group(2) == null ? "" : record.group(2);
                    settle(record.group(1), Base64.getDecoder().decode(value));
                }
            } catch (java.io.IOException away) { // the sidecar starts, or restarts
                Thread.sleep(1000);
            }
        }
    }

    static void settle(String handle, byte[] value) throws Exception {
        String handles = "{\"handles\":[\"" + handle + "\"]";
        try {
            handle(value);
        } catch (RuntimeException failed) {
            call("reconsume-later", handles + ",\"reason\":\"" + failed.getMessage() + "\"}");
            return;
        }
        call("ack", handles + "}"); // 409: the lease was over, and the record comes again
    }

    static String call(String name, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(API + name))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> response = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() >= 500) {
            throw new java.io.IOException(response.body());
        }
        return response.body();
    }
}
