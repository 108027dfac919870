import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Sends the requests of a file with the JDK's own client as it is by default: it offers HTTP/2 with every new connection. */
public class Client {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        List<CompletableFuture<HttpResponse<byte[]>>> together = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[1]))) {
            String[] step = line.split(" "); // method, target, file of the body, how
            HttpRequest request = request(arguments[0], step);
            if (step[3].equals("together")) {
                together.add(client.sendAsync(request, BodyHandlers.ofByteArray()));
            } else {
                print(client.send(request, BodyHandlers.ofByteArray()));
            }
        }
        for (CompletableFuture<HttpResponse<byte[]>> answer : together) {
            print(answer.get());
        }
    }

    private static HttpRequest request(String base, String[] step) throws Exception {
        BodyPublisher body = BodyPublishers.noBody();
        if (!step[2].equals("-")) {
            Path file = Path.of(step[2]);
            body = BodyPublishers.ofFile(file);
            if (step[3].equals("chunked")) {
                body = BodyPublishers.ofInputStream(() -> {
                    try {
                        return Files.newInputStream(file);
                    } catch (java.io.IOException error) {
                        throw new java.io.UncheckedIOException(error);
                    }
                });
            }
        }
        return HttpRequest.newBuilder(URI.create(base + step[1]))
            .timeout(Duration.ofSeconds(30))
            .expectContinue(step[3].equals("expect"))
            .method(step[0], body)
            .build();
    }

    private static void print(HttpResponse<byte[]> answer) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(answer.body());
        System.out.println(answer.statusCode() + " " + HexFormat.of().formatHex(digest));
    }
}
