import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A real Kafka and the real sidecar beside the service under test: `reconsume dev up`, until it is closed. */
public final class ReconsumeDev implements AutoCloseable {
    private static final Pattern LINK = Pattern.compile("\\{\"what\": \"([^\"]*)\", \"where\": \"([^\"]*)\"\\}");
    private static final Pattern ID = Pattern.compile("\"id\": \"([^\"]*)\"");

    private final Process process;
    private final Map<String, String> links = new HashMap<>();

    /** Start everything. `url`: of the service under test; `speed`: what the waits of retries are divided by. */
    public ReconsumeDev(Path configuration, String url, int speed) throws IOException {
        List<String> command = List.of("reconsume", "dev", "up", "-c", configuration.toString(),
                "--set", "deliver.url=" + url, "--speed", Integer.toString(speed), "-o", "jsonl");
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        BufferedReader lines = process.inputReader(StandardCharsets.UTF_8);
        while (!links.containsKey("log")) { // the last of its lines
            String line = lines.readLine();
            if (line == null) {
                throw new IOException("reconsume dev up has ended; its messages are on stderr");
            }
            Matcher link = LINK.matcher(line);
            if (link.matches()) {
                links.put(link.group(1), link.group(2));
            }
        }
    }

    /** The address of a part: dashboard, api, metrics, brokers, configuration or log. */
    public String link(String what) {
        return links.get(what);
    }

    /** Write a record and return its id. `options`: such as "--key", "customer-7". */
    public String produce(String topic, String value, String... options) {
        Matcher id = ID.matcher(run(words(List.of("dev", "produce", topic, value), options)));
        if (!id.find()) {
            throw new AssertionError("the record has no id");
        }
        return id.group(1);
    }

    /** Fail unless the record ends as expected. `options`: such as "--dead", "--retries", "2", "--within", "20s". */
    public void expect(String record, String... options) {
        run(words(List.of("dev", "expect", record), options));
    }

    /** Run a command for this group and return its data. */
    public String run(List<String> words) {
        List<String> command = new ArrayList<>(List.of("reconsume"));
        command.addAll(words);
        command.addAll(List.of("-c", link("configuration"), "-o", "jsonl"));
        try {
            Process one = new ProcessBuilder(command).redirectErrorStream(true).start();
            String said = new String(one.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (one.waitFor() != 0) {
                throw new AssertionError(String.join(" ", words) + ": " + said);
            }
            return said;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private static List<String> words(List<String> first, String... options) {
        List<String> all = new ArrayList<>(first);
        all.addAll(List.of(options));
        return all;
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy();
        if (!process.waitFor(60, TimeUnit.SECONDS)) {
            process.destroyForcibly();
        }
    }
}
