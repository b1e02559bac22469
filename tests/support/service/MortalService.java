import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.Executors;
import java.util.regex.*;

/** The JVM that `mortal_service.py` starts: `java MortalService.java PORT LOG`. */
class MortalService {
    static final Pattern NUMBER = Pattern.compile("\"n\": ?(\\d+)"), DEED = Pattern.compile("\"do\": ?\"(\\w+)\"");

    public static void main(String[] arguments) throws Exception {
        Path log = Path.of(arguments[1]);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])), 128);
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.createContext("/", exchange -> {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            StringJoiner numbers = new StringJoiner(",", "", "\n");
            NUMBER.matcher(body).results().forEach(found -> numbers.add(found.group(1)));
            Files.writeString(log, numbers.toString(), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            for (MatchResult deed : (Iterable<MatchResult>) DEED.matcher(body).results()::iterator) act(deed.group(1));
            exchange.sendResponseHeaders(200, -1);
            exchange.close();
        });
        server.start();
    }

    static void act(String deed) {
        try {
            if (deed.equals("exit")) Runtime.getRuntime().halt(1);
            if (deed.equals("kill")) new ProcessBuilder("kill", "-9", "" + ProcessHandle.current().pid()).start().waitFor();
            if (deed.equals("slow")) Thread.sleep(300);
        } catch (java.io.IOException | InterruptedException fault) {
            throw new IllegalStateException(fault);
        }
        if (deed.equals("throw")) throw new IllegalStateException("as asked");
        List<long[]> held = new ArrayList<>();
        while (deed.equals("oom")) held.add(new long[1 << 20]);
    }
}
