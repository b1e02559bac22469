import java.io.FileReader;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;

/** Reads a properties file as Java does, builds Kafka's client from it without connecting, and prints what it read. */
public class CheckClient {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileReader file = new FileReader(args[0], java.nio.charset.StandardCharsets.UTF_8)) {
            properties.load(file);
        }
        new TreeMap<Object, Object>(properties).forEach((name, value) ->
            System.out.println(name + " " + value.toString().replace("\n", "\\n")));
        Admin.create(properties).close(java.time.Duration.ZERO);
        System.out.println("built");
    }
}
