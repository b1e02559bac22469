package shop;

import java.util.Set;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.HttpStatus;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** A Spring Boot service behind Reconsume: mvn spring-boot:run */
@SpringBootApplication
@RestController
public class Orders {
    record Order(String sku) {}

    static final Set<String> CATALOGUE = Set.of("A-17");

    public static void main(String[] args) {
        SpringApplication.run(Orders.class, args);
    }

    @PostMapping("/events")
    @ResponseStatus(HttpStatus.NO_CONTENT)
    void handle(@RequestBody Order order) {
        if (order.sku() == null) {
            throw new ResponseStatusException(HttpStatus.BAD_REQUEST, "it has no sku");
        }
        if (!CATALOGUE.contains(order.sku())) {
            throw new ResponseStatusException(
                    HttpStatus.UNPROCESSABLE_CONTENT, order.sku() + " is not in the catalogue");
        }
    }
}
