package io.queryabletopics;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Write what one run of the rekey job has to say to the internal topic: rows in envelopes, and markers of its progress.
 *
 * Strategy: a run lives from the start of the query to its end, over all its batches, and is shared by the tasks of its JVM. It
 * numbers the envelopes from each source partition to each internal partition, so a lost one shows (wire/envelopes.py has the
 * layout). The producer is idempotent, so it neither repeats nor reorders. The first failed send ends the run: nothing is written
 * afterwards, and the job starts another one.
 *
 * A thread writes markers when the run has advanced, at most every 50 ms. The language is what Janino compiles.
 */
public final class RekeyRun {
  private static final byte VERSION = 1;
  private static final int HEADER = 1 + 4 + 8 + 2 + 2 + 8 + 8 + 8;
  private static final byte[] MARKER_KEY = new byte[8];
  private static final byte[] NO_ROW = new byte[0];
  private static final long MARKER_NANOS = 50000000L;
  private static final HashMap RUNS = new HashMap(); // run → RekeyRun

  private final long run;
  private final String topic;
  private final int partitions;
  private final KafkaProducer producer;
  private final Source[] sources;
  private final Thread markers;
  private final Callback callback;
  private volatile Exception failed;
  private volatile boolean ended;
  private volatile boolean advanced;

  /** What the run has written of one source partition. */
  private static final class Source {
    private final long[] sequence; // by internal partition
    private final long[] marked; // the progress that each internal partition knows
    private long next; // every record of an earlier offset is written
    private long rows, nullKeys, bad, dropped;

    private Source(int partitions, long covered, long next) {
      sequence = new long[partitions];
      marked = new long[partitions];
      for (int i = 0; i < partitions; i++) {
        marked[i] = covered;
      }
      this.next = next;
    }
  }

  /**
   * Start a run, before its query.
   *
   * @param covered by source partition: the offset from which the run covers it
   * @param starts  by source partition: the offset of the first record that the query reads
   */
  public static void start(long run, String topic, int partitions, Map settings, long[] covered, long[] starts) {
    RekeyRun started = new RekeyRun(run, topic, partitions, settings, covered, starts);
    synchronized (RUNS) {
      RUNS.put(Long.valueOf(run), started);
    }
    started.markers.start();
  }

  /** Return the run, or fail: a run never continues in another JVM. */
  static RekeyRun of(long run) {
    synchronized (RUNS) {
      RekeyRun found = (RekeyRun) RUNS.get(Long.valueOf(run));
      if (found == null) {
        throw new IllegalStateException("the run has ended");
      }
      return found;
    }
  }

  /** Return why the run has ended by itself, or null. */
  public static String failure(long run) {
    Exception failed = of(run).failed;
    return failed == null ? null : failed.toString();
  }

  /** Return rows, null keys, bad records, dropped records, and then the next offset of each source partition. */
  public static String counts(long run) {
    RekeyRun found = of(run);
    long rows = 0, nullKeys = 0, bad = 0, dropped = 0;
    StringBuilder offsets = new StringBuilder();
    for (int i = 0; i < found.sources.length; i++) {
      Source source = found.sources[i];
      synchronized (source) {
        rows += source.rows;
        nullKeys += source.nullKeys;
        bad += source.bad;
        dropped += source.dropped;
        offsets.append(' ').append(source.next);
      }
    }
    return rows + " " + nullKeys + " " + bad + " " + dropped + offsets;
  }

  /** Move over source offsets without a record, if the run stands there. */
  public static void skip(long run, int from, long begin, long reached) {
    RekeyRun found = of(run);
    Source source = found.sources[from];
    synchronized (source) {
      if (source.next != begin) {
        return;
      }
      source.next = reached;
    }
    found.advance();
  }

  /** End the run. What is not acknowledged yet may be lost. */
  public static void end(long run) {
    RekeyRun found;
    synchronized (RUNS) {
      found = (RekeyRun) RUNS.remove(Long.valueOf(run));
    }
    if (found != null) {
      found.ended = true;
      LockSupport.unpark(found.markers);
      found.producer.close(java.time.Duration.ofMillis(0));
    }
  }

  private RekeyRun(long run, String topic, int partitions, Map settings, long[] covered, long[] starts) {
    this.run = run;
    this.topic = topic;
    this.partitions = partitions;
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
    sources = new Source[covered.length];
    callback = new Callback() {
      public void onCompletion(RecordMetadata metadata, Exception error) {
        if (error != null) {
          fail(error);
        }
      }
    };
    for (int i = 0; i < covered.length; i++) {
      sources[i] = new Source(partitions, covered[i], starts[i]);
      for (int to = 0; to < partitions; to++) {
        send(sources[i], i, to, MARKER_KEY, covered[i], 0, 0, System.currentTimeMillis(), NO_ROW);
      }
    }
    advanced = true;
    markers = new Thread(new Runnable() {
      public void run() {
        writeMarkers();
      }
    }, "rekey-markers");
    markers.setDaemon(true);
  }

  /** Write a row: what it adds to its group. */
  void row(int from, long offset, int row, int rows, long timestampMs, byte[] key, byte[] contribution) {
    check();
    Source source = sources[from];
    synchronized (source) {
      require(source, from, offset);
      int to = Partitioners.murmur2(key, partitions);
      send(source, from, to, key, offset, row, rows, timestampMs, contribution);
      source.rows++;
      if (row + 1 == rows) {
        source.next = offset + 1;
        source.marked[to] = offset + 1;
      }
    }
    advance();
  }

  static final int NULL_KEY = 0, BAD = 1, DROPPED = 2;

  /** Note a row that is in no group, or a record without a row. */
  void none(int from, long offset, int row, int rows, int why) {
    check();
    Source source = sources[from];
    synchronized (source) {
      require(source, from, offset);
      source.next = row + 1 == rows ? offset + 1 : source.next;
      source.nullKeys += why == NULL_KEY ? 1 : 0;
      source.bad += why == BAD ? 1 : 0;
      source.dropped += why == DROPPED ? 1 : 0;
    }
    advance();
  }

  /** Return when everything so far is written, or fail. */
  void flush() {
    producer.flush();
    check();
  }

  private static void require(Source source, int from, long offset) {
    if (offset < source.next) {
      throw new IllegalStateException("offset " + offset + " of partition " + from + " comes after " + source.next);
    }
  }

  private void check() {
    if (failed != null) {
      throw new IllegalStateException("the internal topic cannot be written", failed);
    }
    if (ended) {
      throw new IllegalStateException("the run has ended");
    }
  }

  private void fail(Exception error) {
    if (failed == null) {
      failed = error;
    }
  }

  private void advance() {
    if (!advanced) {
      advanced = true;
      LockSupport.unpark(markers);
    }
  }

  private void writeMarkers() {
    try {
      while (!ended && failed == null) {
        if (!advanced) {
          LockSupport.park(this);
          continue;
        }
        advanced = false;
        for (int from = 0; from < sources.length; from++) {
          Source source = sources[from];
          synchronized (source) {
            for (int to = 0; to < partitions; to++) {
              if (source.marked[to] < source.next) {
                send(source, from, to, MARKER_KEY, source.next, 0, 0, System.currentTimeMillis(), NO_ROW);
                source.marked[to] = source.next;
              }
            }
          }
        }
        LockSupport.parkNanos(this, MARKER_NANOS);
      }
    } catch (Exception e) {
      fail(e);
    }
  }

  /** The caller holds the monitor of the source, so that sequences are in the order of the sends. */
  private void send(Source source, int from, int to, byte[] key, long offset, int row, int rows, long timestampMs,
      byte[] contribution) {
    ByteBuffer value = ByteBuffer.allocate(HEADER + contribution.length);
    value.put(VERSION).putInt(from).putLong(offset).putShort((short) row).putShort((short) rows);
    value.putLong(run).putLong(source.sequence[to]++).putLong(timestampMs);
    value.put(contribution);
    // The record's own time is now: brokers refuse times that are far ahead, which a source record may have.
    producer.send(new ProducerRecord(topic, Integer.valueOf(to), key, value.array()), callback);
  }
}
