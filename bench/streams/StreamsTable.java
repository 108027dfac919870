import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Serves a topic as a table, as an application of Kafka Streams does: the rows in RocksDB, point reads over HTTP.
 *
 * <p>Settings are those of Kafka Streams, as {@code name=value} arguments; {@code topic}, {@code partitions} and {@code port} are
 * ours, and so is {@code count}: with it the table has the number of records of each key. The server is the fastest that is common on the JVM: Vert.x on Netty with epoll, no router, one lookup in the store of the
 * key's partition.
 */
public final class StreamsTable {
    private static final String STORE = "rows";
    private static final String ROWS = "/v1/keys/";

    private final KafkaStreams streams;
    private final int partitions;
    private final ConcurrentHashMap<Integer, ReadOnlyKeyValueStore<byte[], Object>> stores = new ConcurrentHashMap<>();

    private StreamsTable(KafkaStreams streams, int partitions) {
        this.streams = streams;
        this.partitions = partitions;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            settings.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        String topic = (String) settings.remove("topic");
        int partitions = Integer.parseInt((String) settings.remove("partitions"));
        int port = Integer.parseInt((String) settings.remove("port"));
        boolean count = settings.remove("count") != null;

        StreamsBuilder builder = new StreamsBuilder();
        if (count) {
            builder.stream(topic, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .groupByKey(Grouped.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .count(Materialized.<byte[], Long>as(Stores.persistentKeyValueStore(STORE)).withKeySerde(Serdes.ByteArray()));
        } else {
            builder.table(topic, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()),
                Materialized.<byte[], byte[]>as(Stores.persistentKeyValueStore(STORE)));
        }
        StreamsConfig config = new StreamsConfig(settings);
        KafkaStreams streams = new KafkaStreams(builder.build(settings), config);
        StreamsTable table = new StreamsTable(streams, partitions);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();

        Vertx vertx = Vertx.vertx(new VertxOptions().setPreferNativeTransport(true).setEventLoopPoolSize(1));
        vertx.createHttpServer(new HttpServerOptions().setTcpNoDelay(true))
            .requestHandler(table::answer)
            .listen(port, "127.0.0.1")
            .toCompletionStage().toCompletableFuture().get(30, TimeUnit.SECONDS);
    }

    private void answer(HttpServerRequest request) {
        String path = request.path();
        if (!path.startsWith(ROWS)) {
            request.response().setStatusCode(streams.state() == KafkaStreams.State.RUNNING ? 200 : 503).end();
            return;
        }
        byte[] key = path.substring(ROWS.length()).getBytes(StandardCharsets.UTF_8);
        Object value;
        try {
            value = store(BuiltInPartitioner.partitionForKey(key, partitions)).get(key);
        } catch (InvalidStateStoreException moved) {
            stores.clear();
            request.response().setStatusCode(503).end();
            return;
        }
        if (value == null) {
            request.response().setStatusCode(404).end();
        } else {
            request.response().putHeader("content-type", "application/json").end(
                value instanceof byte[] bytes ? Buffer.buffer(bytes) : Buffer.buffer(value.toString()));
        }
    }

    private ReadOnlyKeyValueStore<byte[], Object> store(int partition) {
        return stores.computeIfAbsent(partition, p -> streams.store(
            StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.<byte[], Object>keyValueStore()).withPartition(p)));
    }
}
