package io.queryabletopics;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Send the envelopes of a run to the internal topic (wire/envelopes.py has the layout). The producer is idempotent, so it neither
 * repeats nor reorders.
 */
final class RekeyEnvelopes {
  private static final byte VERSION = 1;
  private static final int HEADER = 1 + 4 + 8 + 2 + 2 + 8 + 8 + 8;

  private final long run;
  private final String topic;
  private final KafkaProducer producer;
  private final Callback callback;

  /** @param writer learns of the first failed send */
  RekeyEnvelopes(long run, String topic, Map settings, final RekeyRun writer) {
    this.run = run;
    this.topic = topic;
    HashMap all = new HashMap(settings);
    all.put("acks", "all");
    all.put("enable.idempotence", "true");
    all.put("max.in.flight.requests.per.connection", "5");
    all.put("retries", String.valueOf(Integer.MAX_VALUE));
    all.put("linger.ms", "0");
    all.put("batch.size", "65536");
    all.put("buffer.memory", "33554432");
    all.put("max.request.size", "16777216");
    all.put("max.block.ms", "30000");
    all.put("request.timeout.ms", "10000");
    all.put("delivery.timeout.ms", "30000");
    all.put("partitioner.adaptive.partitioning.enable", "false");
    producer = new KafkaProducer(all, new ByteArraySerializer(), new ByteArraySerializer());
    callback = new Callback() {
      public void onCompletion(RecordMetadata metadata, Exception error) {
        if (error != null) {
          writer.fail(error);
        }
      }
    };
  }

  /** Send a row, or a marker. The caller holds the monitor of the source, so that sequences are in the order of the sends. */
  void send(RekeySource source, int from, int to, byte[] key, long offset, int row, int rows, long timestampMs,
      byte[] contribution) {
    int extra = source.clock != null ? SourceClock.SIZE : source.places != null ? 8 : 0;
    ByteBuffer value = ByteBuffer.allocate(HEADER + extra + contribution.length);
    value.put(VERSION).putInt(from).putLong(offset).putShort((short) row).putShort((short) rows);
    value.putLong(run).putLong(source.sequence[to]++).putLong(timestampMs);
    if (source.clock != null) {
      source.clock.put(value);
    }
    if (source.places != null) {
      value.putLong(Math.min(offset, source.reliesFrom[to]));
      source.reliesFrom[to] = RekeySource.NOTHING;
    }
    value.put(contribution);
    // The record's own time is now: brokers refuse times that are far ahead, which a source record may have.
    producer.send(new ProducerRecord(topic, Integer.valueOf(to), key, value.array()), callback);
  }

  void flush() {
    producer.flush();
  }

  /** Close the producer. What is not acknowledged yet may be lost. */
  void close() {
    producer.close(java.time.Duration.ofMillis(0));
  }
}
