// One record in each request; also for deliver.order. Run it with `java Events.java`.
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public class Events {
    public static void main(String[] args) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8080), 0);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/events", exchange -> {
            int status = 500; // an exception below is a failed attempt, with a response
            try {
                byte[] value = exchange.getRequestBody().readAllBytes();
                status = value.length > 0 && value[0] == '{' ? 204 : 500;
            } finally {
                exchange.sendResponseHeaders(status, -1);
                exchange.close();
            }
        });
        server.start();
    }
}
