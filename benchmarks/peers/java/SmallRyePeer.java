import io.smallrye.reactive.messaging.annotations.Blocking;
import jakarta.enterprise.context.ApplicationScoped;
import jakarta.enterprise.inject.se.SeContainerInitializer;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import org.eclipse.microprofile.reactive.messaging.Incoming;

/** SmallRye Reactive Messaging: its worker pool delivers, and a failure waits in a delayed retry topic. */
@ApplicationScoped
public class SmallRyePeer {
    private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final URI url = URI.create(System.getProperty("url"));

    @Incoming("records")
    @Blocking(ordered = false)
    public void deliver(byte[] value) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(url).POST(HttpRequest.BodyPublishers.ofByteArray(value)).build();
        int status = client.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
        if (status >= 400) {
            throw new IllegalStateException("the service answered " + status);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        SeContainerInitializer.newInstance().addBeanClasses(SmallRyePeer.class).initialize();
        Thread.currentThread().join();
    }
}
